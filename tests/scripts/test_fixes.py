"""A fix leaves no second defect: the length that padding needs, the name that decides the device, line ends."""

from __future__ import annotations

from smp_advisor.scripts import apply_fixes, check_script
from tests.scripts import samples

PLAN = samples.PIPELINE_PLAN


def test_padding_gets_no_length_that_nobody_chose():
    text = samples.XLA.replace('padding="max_length"', "padding=True")
    without = text.replace(", max_length=128", "").replace(", max_length=512", "")
    for script in {text, without}:
        finding = next(finding for finding in check_script(script, samples.XLA_PLAN) if finding.id == "STC401")
        if "max_length" in finding.text:
            assert finding.fix is not None
        else:
            assert finding.fix is None
            assert finding.unfixed == "the call has no max_length, which you must choose"


def test_a_name_that_decides_the_device_elsewhere_is_not_replaced_in_one_place():
    text = samples.PIPELINE.replace("set_device(smp.local_rank())", "set_device(device_of)").replace(
        "    model = Net()\n", "    model = Net().to(device_of)\n"
    )
    text = text.replace("    smp.init()\n", "    device_of = 0\n    smp.init()\n")
    finding = next(finding for finding in check_script(text, PLAN) if finding.id == "SMP108")
    assert finding.fix is None
    assert finding.unfixed == "device_of also decides the device elsewhere"


def test_line_ends_stay(tmp_path):
    path = tmp_path / "train.py"
    text = samples.PIPELINE.replace(", drop_last=True", "").replace("    smp.init()\n", "")
    path.write_bytes(text.replace("\n", "\r\n").encode())
    content = apply_fixes(path, in_place=True, plan=PLAN).read_bytes()
    assert b"smp.init()\r\n" in content
    assert content.count(b"\r\n") == content.count(b"\n")
    assert b"\r\r" not in content
