"""The page looks as it did: pictures of fixed views against those in the folder `pictures`.

The page is drawn with the fonts in `host_page`. Blocks of pixels are compared, not pixels, because browsers smooth
letters differently. After an intended change, write the pictures anew, look at them, and commit them::

    python -m pytest tests/browser/test_pictures.py --write-pictures
"""

import base64
from pathlib import Path

import pytest

from .host import Host

PICTURES = Path(__file__).parent / "pictures"
MEAN, LARGEST = 1.3, 30.0
"""Tolerated differences of the blocks' colors, of 255: the mean, and that of the block that differs most.

The same page differs by 0.7 and 6, because pictures are compressed; letters 0.4 pixels closer by 1.1 and 26; a verdict
without its background by 1.8 and 17; a chart that is not drawn by 2.6 and 129.
"""
BLOCK = 25
"""Size of a block in pixels of the pictures, which have half the size of the page."""

SMALLER = """
const smaller = async address => {
  const image = new Image();
  image.src = address;
  await image.decode();
  const canvas = document.createElement('canvas');
  [canvas.width, canvas.height] = size;
  const context = canvas.getContext('2d');
  context.imageSmoothingQuality = 'high';
  context.drawImage(image, 0, 0, ...size);
  return canvas;
};
"""
SHRINK = f"async ([address, size]) => {{ {SMALLER} return (await smaller(address)).toDataURL('image/webp', 0.3); }}"
COMPARE = f"""
async ([before, now, size, block]) => {{
  {SMALLER}
  const [width, height] = size.map(pixels => Math.ceil(pixels / block));
  const means = async address => {{
    const {{ data }} = (await smaller(address)).getContext('2d').getImageData(0, 0, ...size);
    const [sums, counts] = [new Float64Array(width * height * 3), new Float64Array(width * height * 3)];
    for (let y = 0; y < size[1]; y++) for (let x = 0; x < size[0]; x++) for (let color = 0; color < 3; color++) {{
      const at = 3 * (Math.floor(y / block) * width + Math.floor(x / block)) + color;
      sums[at] += data[4 * (y * size[0] + x) + color];
      counts[at] += 1;
    }}
    return sums.map((sum, at) => sum / counts[at]);
  }};
  const [old, fresh] = [await means(before), await means(now)];
  const differences = [...old].map((value, at) => Math.abs(value - fresh[at]));
  const largest = Math.max(...differences);
  const at = Math.floor(differences.indexOf(largest) / 3);
  const mean = differences.reduce((sum, value) => sum + value, 0) / differences.length;
  return {{ mean, largest, place: [at % width, Math.floor(at / width)].map(cell => 2 * cell * block) }};
}}
"""


def address(kind: str, data: bytes) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"


def difference(page: Host, reference: bytes, size: tuple[int, int]) -> tuple[float, float, list[int]]:
    """The mean and the largest difference of the page from a picture, and the place of the largest on the page."""
    now = address("png", page.page.screenshot(animations="disabled"))
    result = page.page.evaluate(COMPARE, [address("webp", reference), now, size, BLOCK])
    return result["mean"], result["largest"], result["place"]


@pytest.mark.parametrize(("width", "dark"), [(1150, False), (1150, True), (720, False)])
def test_the_page_looks_as_in_its_picture(host, recommended, root, request, width, dark):
    page = host(recommended.recommended, width=width, height=1000, dark=dark)
    page.settle()
    size, shots = (width // 2, 500), root / "artifacts" / "screenshots"
    name = f"recommended-{width}-{'dark' if dark else 'light'}"
    file = PICTURES / f"{name}.webp"
    if request.config.getoption("write_pictures"):
        shot = address("png", page.page.screenshot(animations="disabled"))
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(base64.b64decode(page.page.evaluate(SHRINK, [shot, size]).split(",")[1]))
    shots.mkdir(parents=True, exist_ok=True)
    page.page.screenshot(path=str(shots / f"{name}.png"), full_page=True)
    mean, largest, place = difference(page, file.read_bytes(), size)
    assert mean <= MEAN and largest <= LARGEST, (  # noqa: PT018 (one message)
        f"{name}.png differs from tests/browser/pictures by {mean:.1f} (at most {MEAN}), and by {largest:.0f} (at most"
        f" {LARGEST:.0f}) near {place}: look at both; if the change is intended, write it anew with --write-pictures"
    )
