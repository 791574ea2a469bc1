#!/usr/bin/env bash
# Builds, tests and measures on a machine with an NVIDIA GPU, in stages that each have a time limit
# and a log of their own: one that fails or runs out of time leaves the others' results.
#
#   scripts/gpu_run.sh (-l DIR | -s TREE) [options] [STAGE ..]
#
#   -l DIR     a llama.cpp install with CUDA: DIR/lib, DIR/include
#   -s TREE    instead: llama.cpp's sources, built and installed with CUDA first
#   -v SERVER  llama-server (default: the one in DIR/bin or DIR/lib)
#   -w WHEELS  a folder of wheels to install (default: the Python packages are there already)
#   -d WORK    builds and models, about 60 GB for the real shapes (default: build/gpu)
#   -o OUT     logs and tables (default: WORK/out)
#   -p TARGET  GGUF of SmolLM2-135M-Instruct, for the stages pair and speed
#   -g DEVICE  ggml's name of the GPU (default: CUDA0)
#   -t TYPES   targets of the stages shapes and bench: TYPE, TYPE:LAYERS or TYPE:tiny (default:
#              "q4_k bf16:32")
#   -k BLOCK   block size of their drafters (default: 8)
#   -x FACTOR  of the stages' time limits, which fit 16 cores and an H200 (default: 1)
#   -b OPTIONS more options of bench_gpu.py
#
# Stages: llama prepare tests pair speed shapes bench (default: all, pair and speed only with -p).
# Needed: nvcc, a C++17 compiler, cmake, ninja, Python 3.10 or later with pybind11 and numpy; without
# network also wheels of gguf, rich, markdown-it-py, mdurl, pygments, tqdm, safetensors, platformdirs,
# jinja2, markupsafe, diskcache, typing-extensions, pyyaml, of pytest, pytest-xdist, execnet,
# iniconfig, pluggy, packaging, hypothesis, sortedcontainers and scipy for the tests, and of
# llama-cpp-python built with CMAKE_ARGS=-DLLAMA_BUILD=OFF.
set -uo pipefail
cd "$(dirname "$0")/.."

llama='' source='' server='' wheels='' work=build/gpu out='' pair='' device=CUDA0
types='q4_k bf16:32' block=8 factor=1 bench_options=''
while getopts l:s:v:w:d:o:p:g:t:k:x:b: option; do
    case $option in
        l) llama=$OPTARG ;;
        s) source=$OPTARG ;;
        v) server=$OPTARG ;;
        w) wheels=$OPTARG ;;
        d) work=$OPTARG ;;
        o) out=$OPTARG ;;
        p) pair=$OPTARG ;;
        g) device=$OPTARG ;;
        t) types=$OPTARG ;;
        k) block=$OPTARG ;;
        x) factor=$OPTARG ;;
        b) bench_options=$OPTARG ;;
        *) exit 2 ;;
    esac
done
shift $((OPTIND - 1))
if [ -z "$llama$source" ]; then
    echo "error: expected -l DIR (a llama.cpp install with CUDA) or -s TREE (its sources)" >&2
    exit 2
fi
python=${PYTHON:-python3}
mkdir -p "$work" "${out:=$work/out}"
work=$(realpath "$work") out=$(realpath "$out") llama=$(realpath -m "${llama:-$work/llama}")
for found in "$llama/bin/llama-server" "$llama/lib/llama-server"; do
    [ -n "$server" ] || [ ! -x "$found" ] || server=$found
done
jobs=$(nproc)
export LD_LIBRARY_PATH=$llama/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} PYTHONUNBUFFERED=1
packages=$work/packages

# use BUILD: programs that follow import dflash2 from this build, "site" or "site-bench".
use() { export PYTHONPATH=$work/$1:$packages:$PWD/scripts:$PWD/convert; }

stage_llama() { # the CUDA libllama from its sources
    [ -z "$source" ] && return 0
    cmake -G Ninja -S "$source" -B "$work/llama-build" -DCMAKE_BUILD_TYPE=Release -DGGML_CUDA=ON \
        -DCMAKE_CUDA_ARCHITECTURES=native -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF \
        -DLLAMA_BUILD_APP=OFF -DLLAMA_OPENSSL=OFF -DLLAMA_USE_PREBUILT_UI=OFF \
        -DCMAKE_INSTALL_PREFIX="$llama" -DCMAKE_INSTALL_LIBDIR=lib &&
        cmake --build "$work/llama-build" -j "$jobs" && cmake --install "$work/llama-build"
}

build() { # NAME OPTION: the package with an extension of its own
    cmake -G Ninja -S . -B "$work/build-$1" -DDFLASH2_PYTHON=ON -DDFLASH2_LLAMA_ROOT="$llama" \
        -DPython_EXECUTABLE="$(command -v "$python")" \
        -Dpybind11_DIR="$(PYTHONPATH=$packages "$python" -m pybind11 --cmakedir)" "$2" &&
        cmake --build "$work/build-$1" -j "$jobs" &&
        mkdir -p "$work/$1" && cp -r python/dflash2 "$work/$1/" &&
        cmake --install "$work/build-$1" --prefix "$work/$1"
}

stage_prepare() {
    if [ -n "$wheels" ]; then
        "$python" -m pip install -q --no-index --no-deps --upgrade --target "$packages" \
            "$wheels"/*.whl || return
    fi
    build site -DDFLASH2_BENCH=OFF && build site-bench -DDFLASH2_BENCH=ON && use site &&
        "$python" -m dflash2 --list-devices
}

stage_tests() {
    use site
    # Reference vectors are F32: cuBLAS must not round its inputs to TF32. Plugins that happen to be
    # installed stay out.
    NVIDIA_TF32_OVERRIDE=0 PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 "$python" -m pytest -p xdist -n 8 \
        --dist worksteal --device "$device" -p no:cacheprovider -v --tb=short tests/engine \
        tests/reference tests/python
}

pair_draft=$work/smollm2-draft.gguf

convert_pair() { # our drafter for the SmolLM2 of -p
    "$python" convert/dflash2_to_gguf.py models/smollm2-135m-dflash2 --target "$pair" \
        --outtype q4_k_m --outfile "$pair_draft" --force
}

stage_pair() { # the pair that ships with the project: lossless, and accept lengths beside the CPU's
    use site
    local failed=0
    convert_pair || return
    for copy in '' --f16; do
        "$python" scripts/check_lossless.py --target "$pair" --draft "$pair_draft" \
            --n-gpu-layers -1 $copy --json > "$out/pair-lossless$copy.json" || failed=1
        cat "$out/pair-lossless$copy.json"
    done
    "$python" scripts/compare_acceptance.py devices --target "$pair" --prompts 48 \
        --max-tokens 96 --threads "$((jobs < 12 ? jobs : 12))" --json > "$out/pair-acceptance.json" ||
        failed=1
    cat "$out/pair-acceptance.json"
    return $failed
}

stage_speed() { # of the same pair
    use site
    convert_pair || return
    "$python" -m dflash2 bench -m "$pair" -md "$pair_draft" -ngl -1 --spec-draft-n-max auto,3,7 \
        ${server:+--server "$server"} -o json > "$out/pair-speed.json" && cat "$out/pair-speed.json"
}

# shape TYPE[:LAYERS]: path of that target without its extension
shape() { echo "$work/shapes/$1" | tr : -; }

stage_shapes() {
    use site
    mkdir -p "$work/shapes"
    for type in $types; do
        local target size=()
        target=$(shape "$type")
        case $type in
            *:tiny) size=(--tiny) ;;
            *:*) size=(--layers "${type#*:}") ;;
        esac
        [ -f "$target.gguf" ] ||
            "$python" scripts/make_shapes.py target "$target.gguf" --type "${type%:*}" "${size[@]}" ||
            return
        "$python" scripts/make_shapes.py drafter "$target-block$block.gguf" \
            --target "$target.gguf" --block-size "$block" || return
    done
}

stage_bench() {
    use site-bench
    local gpu_mib failed=0
    gpu_mib=$(nvidia-smi -i 0 --query-gpu=memory.total --format=csv,noheader,nounits || echo 0)
    for type in $types; do
        local target draft each_mib
        target=$(shape "$type")
        draft=$target-block$block.gguf
        if [ ! -f "$draft" ]; then
            echo "error: $draft: no such file; run the stage shapes first" >&2
            failed=1
            continue
        fi
        each_mib=$(($(stat -Lc %s "$target.gguf") / 1048576 + 5000)) # with drafter, K/V and scratch
        # Beside two of ours: plain, and with the drafter.
        local at_once=$((gpu_mib / each_mib - 2))
        # shellcheck disable=SC2086
        "$python" scripts/bench_gpu.py -m "$target.gguf" -md "$draft" --server "$server" \
            -o "$out/bench-$(basename "$draft" .gguf)" --at-once $((at_once > 1 ? at_once : 1)) \
            --note "$(nvidia-smi -i 0 --query-gpu=name,driver_version --format=csv,noheader)" \
            $bench_options || failed=1
    done
    return $failed
}

declare -A limit=([llama]=500 [prepare]=150 [tests]=250 [pair]=200 [speed]=120 [shapes]=150
    [bench]=400)
[ $# -gt 0 ] || set -- llama prepare tests ${pair:+pair speed} shapes bench
for stage in "$@"; do
    if [ -z "${limit[$stage]:-}" ]; then
        echo "error: expected stages of ${!limit[*]}, got $stage" >&2
        exit 2
    fi
done
failed=0
for stage in "$@"; do
    begin=$SECONDS
    # In a process of its own, so that timeout can end all that it started.
    export -f use build shape convert_pair "stage_$stage"
    export llama source server wheels work out pair pair_draft device types block bench_options \
        python jobs packages
    timeout -k 10 $((factor * limit[$stage])) bash -o pipefail -c "stage_$stage" > "$out/$stage.log" 2>&1
    status=$?
    [ $status -eq 0 ] || failed=1
    printf '%-8s %s in %d s\n' "$stage" "$([ $status -eq 0 ] && echo done || echo "FAILED ($status)")" \
        $((SECONDS - begin))
    tail -n "$([ $status -eq 0 ] && echo 3 || echo 30)" "$out/$stage.log" | sed 's/^/    /'
done
exit $failed
