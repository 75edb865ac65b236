# What a person runs. Each target says what it does when it fails.
#
#   make demo    two homes behind NATs, one private network, shown on this machine
#   make test    all tests, with the race detector
#   make check   formatting, vet, staticcheck, known vulnerabilities, who may lean on whom
#   make bench   weft beside plain wireguard-go, as ratios
#   make fuzz    every fuzz target for a short while (FUZZTIME=10s)
#   make build   bin/weft

GO       ?= go
FUZZTIME ?= 10s
BENCHOUT ?= out/bench

# Tests and demonstration use this one binary and build none themselves.
export WEFT_BINARY := $(CURDIR)/bin/weft

.PHONY: build demo test check bench fuzz clean

build:
	@mkdir -p bin
	CGO_ENABLED=0 $(GO) build -trimpath -o bin/weft ./cmd/weft

# Without what it lacks, the demonstration says so and shows what works without it.
demo:
	@scripts/install-deps demo || echo "weft: going on without what is missing"
	@$(MAKE) --no-print-directory build
	@bin/weft lab demo

# The race detector needs a C compiler; the tests that need root, TUN or namespaces say where they
# are skipped and why. Two packages at a time: the tests on real interfaces measure time.
test: build
	@scripts/install-deps --list race || { echo "weft: the race detector needs what is named above; scripts/install-deps test installs it" >&2; exit 1; }
	CGO_ENABLED=1 $(GO) test -race -p 2 -timeout 20m ./...

check:
	@scripts/check

bench: build
	@scripts/install-deps demo || echo "weft: going on without what is missing"
	bin/weft bench overlay --out $(BENCHOUT)

fuzz:
	@scripts/fuzz $(FUZZTIME)

clean:
	rm -rf bin out
