#!/usr/bin/env bash
# The everyday command: format, lint, types, import contracts, shell, lua and C checks, and every test that needs
# neither root nor a cluster. Minutes. Usage: tests/check.sh [pytest arguments]
set -euo pipefail
cd "$(dirname "$0")/.."
tests/setup.sh
# With it, every Python that a test starts would compile all that it imports: a second each, and hundreds start.
unset PYTHONDONTWRITEBYTECODE
PATH=$PWD/.venv/bin:$PATH

outputs=$(mktemp -d)
trap 'jobs -p | xargs -r kill 2>/dev/null || true; rm -rf "$outputs"' EXIT
names=()
steps=()
step() { # beside the other steps: most of them use one core
	"${@:2}" >"$outputs/${#steps[@]}" 2>&1 &
	names+=("$1")
	steps+=($!)
}
end_of_steps() { # each with its own output, in the order of the list
	local number failed=0
	for number in "${!steps[@]}"; do
		if wait "${steps[number]}"; then
			echo "ok: ${names[number]}"
		else
			cat "$outputs/$number"
			echo "FAILED: ${names[number]}"
			failed=1
		fi
	done
	return "$failed"
}

# Templates become shell once they are rendered: test_ood_app.py checks those.
mapfile -t shells < <(git ls-files -co --exclude-standard | grep -v '[.]erb$' | while read -r file; do
	[ -f "$file" ] && head -c 64 "$file" | head -n 1 | grep -qaE '^#!.*\b(ba|da)?sh\b' && echo "$file"
done)
mapfile -t sources < <(git ls-files -co --exclude-standard '*.c')

step "format" ruff format --check .
step "lint" ruff check --output-format concise .
step "types" mypy
step "import contracts" lint-imports
step "shell" shellcheck "${shells[@]}"
step "lua" luac5.1 -p plugins/job_submit.lua
step "C analysis" cppcheck --quiet --error-exitcode=1 --inline-suppr --std=c11 --enable=warning,performance,portability \
	--suppress=missingIncludeSystem "${sources[@]}"
step "C plugin, all warnings are errors" make -s -C plugins BUILD="$PWD/build/plugins"
step "C hooks, all warnings are errors" make -s -C prolog BUILD="$PWD/build/hooks"
step "C simulated driver, all warnings are errors" make -s -C packaging/demo/simgpu BUILD="$PWD/build/simgpu"
step "every test file can be read" pytest --collect-only -q "$@" # compiles each once for the processes below
end_of_steps
# More than there are cores: many tests wait for a moment, for a terminal or a daemon. Each process collects all tests.
pytest -q -m "not cluster and not gpu and not weekly" -n 6 --dist worksteal "$@"
