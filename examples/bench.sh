#!/bin/sh
# A benchmark as `evenkeel calibrate` wants one: it is told by EVENKEEL_TRIAL_* what is tried, keeps its share busy for
# so many seconds, and prints one line of JSON. Made for examples/laptop.toml; your own stages have your own.
set -eu

: "${EVENKEEL_TRIAL_STAGE:?run by evenkeel calibrate, not by hand}"
seconds=$EVENKEEL_TRIAL_SECONDS
cores=$EVENKEEL_TRIAL_CORES

# An environment step: some milliseconds of counting. Prints how many steps were done.
simulate() {
    steps=0
    end=$(awk -v s="$seconds" -v now="$(date +%s%3N)" 'BEGIN { printf "%.0f", now + 1000 * s }')
    while [ "$(date +%s%3N)" -lt "$end" ]; do
        i=0
        while [ "$i" -lt 2000 ]; do i=$((i + 1)); done
        steps=$((steps + 1))
    done
    echo "$steps"
}

# The emulated GPU is kept busy; a unit of this stage is taken to be so many FLOPs.
on_gpu() {
    evenkeel-gpu probe --json --seconds "$seconds" |
        sed -n 's/.*"measured_flops_per_s":\([0-9.e+]*\).*/\1/p' |
        awk -v unit="$1" '{ printf "{\"units_per_s\": %.2f}\n", $1 / unit }'
}

case $EVENKEEL_TRIAL_STAGE in
simulation)
    i=0
    {
        while [ "$i" -lt "$cores" ]; do
            simulate &
            i=$((i + 1))
        done
        wait
    } | awk -v s="$seconds" '{ n += $1 } END { printf "{\"units_per_s\": %.2f}\n", n / s }'
    ;;
generation) on_gpu 2e12 ;;
training) on_gpu 1e12 ;;
*)
    echo "there is no benchmark for stage $EVENKEEL_TRIAL_STAGE" >&2
    exit 1
    ;;
esac
