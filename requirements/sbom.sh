#!/bin/sh
# Write what the pins come to, with licences and who needs whom, as a CycloneDX document: requirements/sbom.cdx.json.
#
# It is read from an environment into which nothing but the pins was installed, on the oldest Python supported, as they
# were compiled. Nothing of this machine or moment stands in it: the same pins give the same bytes.
set -eu
cd "$(dirname "$0")"

python=$(command -v /usr/bin/python3.11 || command -v python3.11) || {
    echo 'sbom: Python 3.11 is needed, as for the pins: install it and put it on the PATH.' >&2
    exit 1
}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

unset PIP_FIND_LINKS PIP_EXTRA_INDEX_URL PIP_CONSTRAINT SOURCE_DATE_EPOCH
export PIP_CONFIG_FILE=/dev/null PIP_DISABLE_PIP_VERSION_CHECK=1
echo 'sbom: reading the pins into requirements/sbom.cdx.json'
"$python" -m venv "$scratch/tool"
"$scratch/tool/bin/pip" install --quiet cyclonedx-bom
"$python" -m venv --without-pip "$scratch/pins"
"$scratch/tool/bin/pip" --python "$scratch/pins/bin/python" install --quiet --require-hashes -r runtime.txt -r bwrap.txt
"$scratch/tool/bin/cyclonedx-py" environment --pyproject ../pyproject.toml --mc-type application \
    --output-reproducible --short-PURLs --spec-version 1.6 "$scratch/pins/bin/python" >"$scratch/read.json"
"$python" sbom.py <"$scratch/read.json" >"$scratch/sbom.json"
mv "$scratch/sbom.json" sbom.cdx.json
