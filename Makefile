# What a person runs. Each target says what it does when it fails.
#
#   make demo    two homes behind NATs, one private network, shown on this machine
#   make test    all tests, with the race detector
#   make test-guest    the tests against the kernel's WireGuard, in an emulated machine with Debian's kernel
#   make test-interop  ten minutes of traffic with every other WireGuard, with loss, rekeys and roaming
#   make test-dex  signing in at Dex, a provider of OpenID Connect that others wrote: fetched and built, a minute
#   make check   formatting, vet, staticcheck, known vulnerabilities, who may lean on whom
#   make bench   weft beside plain wireguard-go, and its relay beside another, as ratios; a flow beside floods of strangers
#   make bench-bond    several links as one, beside each alone and the kernel's MPTCP, in 20 minutes (FULL=1: an hour and a half)
#   make fuzz    every fuzz target for a short while (FUZZTIME=10s)
#   make build   bin/weft

GO       ?= go
FUZZTIME ?= 10s
BENCHOUT ?= out/bench

# Tests and demonstration use this one binary and build none themselves.
export WEFT_BINARY := $(CURDIR)/bin/weft

# Where scripts/install-deps unpacks the kernel of the guest.
GUEST := $(CURDIR)/bin/guest

.PHONY: build demo test test-dex test-guest test-interop check bench bench-bond fuzz clean

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
# Rooms that start no goroutine, which TestTheRoomsLeanOnlyOnWhomTheyMay sees to, and whose simulations the detector makes eight times slower, go without it.
GOROUTINELESS := ./bond ./path
test: build
	@scripts/install-deps --list race || { echo "weft: the race detector needs what is named above; scripts/install-deps test installs it" >&2; exit 1; }
	$(GO) test -timeout 20m $(GOROUTINELESS); without=$$?; \
	CGO_ENABLED=1 $(GO) test -race -p 2 -timeout 20m $$($(GO) list ./... | grep -vxF "$$($(GO) list $(GOROUTINELESS))") && exit $$without

# Without the race detector: the guest is emulated, and slow enough. Where its kernel cannot be had, that is said, and the end.
test-guest:
	@scripts/install-deps guest
	WEFT_GUEST=$(GUEST) $(GO) test -count=1 -timeout 20m -v ./lab/guest ./lab/interop

# Signing in at a provider that others wrote. It is fetched and built, which takes a minute.
test-dex:
	WEFT_DEX=1 $(GO) test -count=1 -timeout 10m -v -run Dex ./cli

test-interop:
	@scripts/install-deps guest || echo "weft: going on without what is missing"
	WEFT_GUEST=$(GUEST) WEFT_INTEROP=10m $(GO) test -count=1 -timeout 30m -v -run 'TenMinutes|FoundAgain' ./lab/interop

check:
	@scripts/check

bench: build
	@scripts/install-deps demo || echo "weft: going on without what is missing"
	@bin/weft bench overlay --out $(BENCHOUT); overlay=$$?; bin/weft bench relay --out $(BENCHOUT); relay=$$?; \
	WEFT_FLOODS=all $(GO) test -count=1 -v -run FloodsOfStrangers ./engine; exit $$((overlay | relay | $$?))

bench-bond: build
	@bin/weft bench bond $(if $(FULL),--full) --out $(BENCHOUT)

fuzz:
	@scripts/fuzz $(FUZZTIME)

clean:
	rm -rf bin out
