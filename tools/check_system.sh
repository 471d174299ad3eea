#!/bin/bash
# Tells what the machine lacks, and the line that installs it.
set -u
python=${1:-python3}
missing=()
command -v g++ >/dev/null || missing+=(g++)
command -v make >/dev/null || missing+=(make)
command -v "$python" >/dev/null || missing+=(python3)
if command -v "$python" >/dev/null; then
  "$python" -c 'import venv, ensurepip' 2>/dev/null || missing+=(python3-venv)
  "$python" -c 'import os, sys, sysconfig; sys.exit(not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")))' || missing+=(python3-dev)
  "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "gristmill needs Python 3.11 or later; $python is $("$python" -V 2>&1)."; exit 1; }
fi
if [ ${#missing[@]} -gt 0 ]; then
  echo "This machine lacks: ${missing[*]}"
  echo "  Mend: sudo apt-get install -y ${missing[*]}"
  exit 1
fi
