#!/bin/sh
# Recompile the pins of this folder from pyproject.toml; arguments go to pip-compile (--upgrade). Then write what they
# come to, with licences and who needs whom, as a CycloneDX document (sbom.cdx.json); `sbom` for an argument does that alone.
#
# Pins are made on the oldest Python supported: what it needs covers the newer ones, whose extra conditions only
# take packages away. pip's own configuration is left out, because an index or a folder of wheels that only this
# machine has would put hashes into the files that no other machine can meet.
set -eu
cd "$(dirname "$0")/.."

python=$(command -v /usr/bin/python3.11 || command -v python3.11) || {
    echo 'requirements: Python 3.11 is needed to compile the pins: install it and put it on the PATH.' >&2
    exit 1
}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

unset PIP_FIND_LINKS PIP_EXTRA_INDEX_URL PIP_CONSTRAINT
export PIP_CONFIG_FILE=/dev/null PIP_DISABLE_PIP_VERSION_CHECK=1 CUSTOM_COMPILE_COMMAND='make requirements'
"$python" -m venv "$scratch"

# It is read from an environment into which nothing but the pins was installed. Nothing of this machine or moment stands
# in it: the same pins give the same bytes.
list_components() {
    echo 'requirements: listing the pins in requirements/sbom.cdx.json'
    "$scratch/bin/pip" install --quiet cyclonedx-bom
    "$python" -m venv --without-pip "$scratch/pins"
    "$scratch/bin/pip" --python "$scratch/pins/bin/python" install --quiet --require-hashes \
        -r requirements/runtime.txt -r requirements/bwrap.txt
    env -u SOURCE_DATE_EPOCH "$scratch/bin/cyclonedx-py" environment --pyproject pyproject.toml \
        --mc-type application --output-reproducible --short-PURLs --spec-version 1.6 "$scratch/pins/bin/python" \
        >"$scratch/read.json"
    "$python" requirements/sbom.py <"$scratch/read.json" >"$scratch/sbom.json"
    mv "$scratch/sbom.json" requirements/sbom.cdx.json
}

if [ "${1-}" = sbom ]; then
    list_components
    exit
fi

"$scratch/bin/pip" install --quiet pip-tools

# Print the requirements of one section; pip-compile itself reads no dependency groups.
section() {
    "$python" -c '
import sys, tomllib

with open("pyproject.toml", "rb") as file:
    pyproject = tomllib.load(file)
print(*{
    "runtime": pyproject["project"]["dependencies"],
    "dev": pyproject["dependency-groups"]["dev"],
    "pipx": pyproject["dependency-groups"]["pipx"],
    "bwrap": pyproject["project"]["optional-dependencies"]["bwrap"],
    # hatchling asks for editables only when it makes an editable install
    "build": [*pyproject["build-system"]["requires"], "editables"],
}[sys.argv[1]], sep="\n")' "$1"
}

constraints=
for name in runtime dev build bwrap pipx; do
    echo "requirements: compiling requirements/$name.txt"
    # shellcheck disable=SC2086  # the constraints are many words or none
    section "$name" | "$scratch/bin/pip-compile" --quiet --generate-hashes --strip-extras --allow-unsafe \
        --no-emit-options --annotation-style line \
        --output-file "requirements/$name.txt" $constraints "$@" -
    sed -i 's/# via -r -/# via pyproject.toml/' "requirements/$name.txt"
    # All of them are installed side by side, so what an earlier file pins holds in the later ones.
    constraints="$constraints --constraint requirements/$name.txt"
done

list_components
