#!/usr/bin/env bash
# Prints what a build for this machine alone says to TRIBUTARY_CUDA: AUTO where there is a GPU, else OFF.
set -euo pipefail
if [ -e /dev/nvidiactl ] || [ -e /dev/dxg ]; then echo AUTO; else echo OFF; fi
