#!/usr/bin/env bash
# Build the sdist, the wheel, the bill of materials and their checksums into dist/, from the last commit. Everything is
# built twice, in folders of different depth, at different times of the files and with another time zone and file mode:
# the distributions have to be identical. $1: Python with the build tools.
set -euo pipefail
cd "$(dirname "$0")/.."
python=$(cd "$(dirname "$1")" && pwd)/$(basename "$1")
repository=$PWD
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
PATH="$(dirname "$python"):$PATH"

# `build FOLDER OPTIONS...`: an archive of the commit, with nothing that was built before
build() {
  local folder=$1
  shift
  mkdir -p "$folder"
  git -C "$repository" archive HEAD | tar -x -C "$folder" "$@"
  (cd "$folder" && "$python" -m build --no-isolation --outdir out . >out.log 2>&1) || { tail -n 40 "$folder/out.log" >&2; exit 1; }
}

[ -z "$(git status --porcelain --untracked-files=no)" ] || echo "changes that are not committed are not built" >&2
echo "building"
build "$work/first"
echo "building again"
(umask 077 && TZ=Asia/Tokyo LC_ALL=C build "$work/a second/folder, deeper" --touch)
for file in "$work/first/out"/*; do
  cmp "$file" "$work/a second/folder, deeper/out/$(basename "$file")"
done

rm -rf dist
mkdir dist
cp "$work/first/out"/* dist/
"$python" scripts/sbom.py dist/*.whl >dist/sbom.cdx.json
(cd dist && sha256sum -- *.whl *.tar.gz sbom.cdx.json | tee SHA256SUMS)
