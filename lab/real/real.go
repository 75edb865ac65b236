// Package real runs scenarios in network namespaces of this machine, with the real weft binary and any other program:
// the backend "netns".
//
// # What is real in it
//
// Programs, sockets, TUN devices, the kernel's own IP: all of it. Routers are lab/router, the same lab/vnet NAT that
// the virtual backend has, on TAP devices; or, where the scenario says kernel=, Linux's conntrack and nftables. Links
// are slow and lossy by lab/router's wires. The internet is one segment that counts for [hops] routers on each side, so
// that packets with a low time to live end in it, as they do in the real one.
//
// # How its parts meet
//
// [Backend.Run] makes a netns.Lab for itself, lays out routers and hosts (world.go), starts what runs on them (roles.go),
// watches how the pairs reach each other until every expectation is decided (watch.go), lets events happen meanwhile
// (events.go), data flow (flows.go), other people's probes look (roles.go) and routers tell of packets (trace.go), and
// judges by scenario.History, as every backend does. Many runs may go on at once; they share nothing.
//
// # What it leaves behind
//
// Nothing: the lab is closed however a run ends, and what a killed process could not close is swept when the next one
// starts. Logs are kept where Options.Dir says so.
//
// # What it refuses
//
// Without root, Linux, ip or nft it says in a sentence what is missing. Addresses that a scenario names must lie in the
// laboratory's own documentation prefixes; the kernel's NAT neither moves its mappings nor changes its address. Both are
// refused, with the line, before anything is built.
package real

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"weft"
	"weft/lab/netns"
	"weft/lab/scenario"
)

const (
	// labPrefix is what namespaces of this backend begin with, by which leftovers are known.
	labPrefix = "wreal"
	// hops is how many routers each side's way into the internet counts for: lab/vnet's internet has ten from one NAT to
	// another, and real paths have 10 to 20.
	hops = 5
	// readyWithin bounds how long programs may take until the scenario can begin: a node needs half a second on an idle
	// machine.
	readyWithin = 60 * time.Second
	// logKept is how much of a program's log a result holds, from its end.
	logKept = 64 << 10
)

// Backend runs scenarios in network namespaces. Run may be called from several goroutines at once.
type Backend struct{}

// Name is "netns".
func (Backend) Name() string { return "netns" }

// Run runs a scenario. It needs root; the error says so in a sentence, and what else is missing.
func (b Backend) Run(ctx context.Context, s scenario.Scenario, o scenario.Options) (result scenario.Result, err error) {
	if err := netns.Available(); err != nil {
		return result, fmt.Errorf("the netns backend cannot run here: %w; the vnet backend needs nothing of this machine", err)
	}
	if err := b.check(s); err != nil {
		return result, err
	}
	if o.Binary, err = program(s, o.Binary); err != nil {
		return result, err
	}
	w, err := newWorld(ctx, s, o)
	if err != nil {
		return result, fmt.Errorf("laying out %s: %w", s.Name, err)
	}
	defer func() {
		if left := w.close(); left != nil {
			err = errors.Join(err, fmt.Errorf("cleaning up after %s: %w", s.Name, left))
		}
	}()
	if err := w.start(); err != nil {
		return w.result(), fmt.Errorf("starting %s: %w", s.Name, err)
	}
	err = w.watch()
	return w.result(), err
}

// program finds weft where the scenario has hosts that run it.
func program(s scenario.Scenario, path string) (string, error) {
	if !slices.ContainsFunc(s.Hosts, func(h scenario.Host) bool { return h.Role != scenario.Plain }) {
		return path, nil
	}
	path, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	if st, err := os.Stat(path); err != nil || st.IsDir() {
		return "", fmt.Errorf("the weft program %s, which the hosts are to run, is missing: run make build", path)
	}
	return path, nil
}

// kernels are the kernel's NATs by their names in scenarios.
var kernels = map[string]netns.NAT{
	"masquerade": netns.PortRestrictedCone, "random": netns.Symmetric, "dnat": netns.FullCone, "firewall": netns.Firewall,
}

// check refuses what this backend cannot do.
func (b Backend) check(s scenario.Scenario) error {
	refuse := func(line int, what string, args ...any) error {
		return &scenario.Unsupported{Backend: b.Name(), What: fmt.Sprintf(what, args...), Line: line}
	}
	for _, r := range s.Routers {
		if _, known := kernels[r.Kernel]; r.Kernel != "" && !known {
			return refuse(r.Line, "have the kernel be a %s", r.Kernel)
		}
		for _, a := range r.NAT.Public {
			if !netns.PublicPrefix().Contains(a) {
				return refuse(r.Line, "give %s the address %v outside: its internet is %v", r.Name, a, netns.PublicPrefix())
			}
		}
	}
	for _, e := range s.Events {
		r := s.Router(e.Args[0])
		if r == nil {
			continue
		}
		if r.Kernel != "" && (e.Verb == scenario.Rebind || e.Verb == scenario.Readdress) {
			return refuse(e.Line, "%s %s, for its NAT is the kernel's: leave kernel= out on line %d", e.Verb, r.Name, r.Line)
		}
		if e.Verb == scenario.Readdress && r.NAT.Mapping == weft.NoNAT {
			return refuse(e.Line, "readdress %s, which translates nothing: whoever is inside has addresses of their own", r.Name)
		}
	}
	return nil
}
