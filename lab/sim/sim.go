// Package sim runs scenarios in virtual time: the vnet backend. A scenario of a minute takes some milliseconds.
//
// What is real in it is everything that decides. Each node is a [path.Agent] per peer, with what feeds it in the
// daemon: gather.Reflexive, stun.Discovery with its seven sockets, relay.UDPBinding with what it asks relays, and
// sealed wire frames over sockets of lab/vnet; relays answer by stun.Responder and by package wire. The NATs are
// lab/vnet's. What is modelled is what moves bytes: a relay's forwarding, the streams to relays and to the server
// (TCP, as far as it matters here: in order, nothing lost, late while a link is down, gone when a program ends or an
// address changes), and the data plane: a numbered packet that goes the way that the agent chose, or where there are
// several ways, through a queue.Queue, a bond.Sender and a bond.Receiver as in the engine.
//
// One loop, one seed: the same scenario and seed give the same run. A [Backend] may run many scenarios at once.
//
// Files: sim.go (a run), world.go (the network of a scenario, and what happens to it), node.go, links.go, relays.go, peers.go,
// spares.go, discovery.go, bond.go (the daemon's part, room by room), server.go (coordinator), relay.go (the relay's end),
// stream.go, flow.go (data), trace.go.
package sim

import (
	"context"
	"fmt"
	"slices"
	"time"

	"weft"
	"weft/lab/scenario"
	"weft/lab/vnet"
)

// Backend is the vnet backend. Its zero value is ready, and may be used by many goroutines at once.
type Backend struct{}

// Name is what --backend calls it.
func (Backend) Name() string { return "vnet" }

// tick is how often it is looked whether everything is decided.
const tick = 100 * time.Millisecond

// Run runs a scenario. What it cannot do, commands of others, it refuses with a *scenario.Unsupported.
func (b Backend) Run(ctx context.Context, s scenario.Scenario, o scenario.Options) (scenario.Result, error) {
	if err := b.able(s); err != nil {
		return scenario.Result{}, err
	}
	w, err := newWorld(s, o)
	if err != nil {
		return scenario.Result{}, fmt.Errorf("laying out %s: %w", s.Name, err)
	}
	for end := s.Duration(); ; {
		if err := ctx.Err(); err != nil {
			return scenario.Result{}, err
		}
		now := w.elapsed()
		if w.err != nil {
			return scenario.Result{}, fmt.Errorf("running %s: %w", s.Name, w.err)
		}
		w.history.End = now
		w.noteFlows()
		w.noteLinks(now)
		outcomes, decided := w.history.Judge(s, now >= end)
		if now >= end || decided && w.happened(now) {
			return w.result(b.Name(), outcomes), nil
		}
		w.net.Run(min(tick, end-now))
	}
}

// able refuses what only real machines can do.
func (b Backend) able(s scenario.Scenario) error {
	if what, line := s.OnlyReal(); what != "" {
		return &scenario.Unsupported{Backend: b.Name(), What: what + ": only real machines do, with --backend netns", Line: line}
	}
	return nil
}

// happened reports whether all events are over, and whether somebody expects anything at all: without, a scenario
// goes on to its end.
func (w *world) happened(now time.Duration) bool {
	return len(w.s.Expect) > 0 && w.lastEvent < now
}

// result sums the run up.
func (w *world) result(backend string, outcomes []scenario.Outcome) scenario.Result {
	r := scenario.Result{
		Scenario: w.s.Name, Backend: backend, Seed: w.o.Seed, Elapsed: w.elapsed(), Outcomes: outcomes,
		OK: !slices.ContainsFunc(outcomes, func(o scenario.Outcome) bool { return !o.OK }), Flows: w.history.Results(), Changes: w.history.Changes(),
		Logs: map[string]string{},
	}
	for i, a := range w.nodes {
		for _, b := range w.nodes[i+1:] {
			r.Pairs = append(r.Pairs, w.pair(a, b))
		}
	}
	for _, m := range w.machines {
		if m.log.Len() > 0 {
			r.Logs[m.spec.Name] = m.log.String()
		}
	}
	if w.trace != nil {
		r.Trace = w.trace.packets
	}
	return r
}

// pair is how two nodes reached each other.
func (w *world) pair(a, b *node) scenario.PairResult {
	r := scenario.PairResult{A: a.name(), B: b.name(), Path: w.history.At(w.elapsed(), a.name(), b.name())}
	if at, ok := w.history.First(a.name(), b.name(), weft.PathDirect); ok {
		r.DirectAfter = max(at-max(a.m.spec.Start, b.m.spec.Start), 1)
	}
	r.Packets = a.tries[b.id] + b.tries[a.id]
	p, q := a.peer(b.id), b.peer(a.id)
	if p == nil || q == nil {
		r.Reason = "one of them is switched off"
		return r
	}
	now := w.net.Now()
	here, there := p.agent.Snapshot(now), q.agent.Snapshot(now)
	if r.Reason = here.Reason; r.Path == weft.PathDirect {
		r.Way = wayOf(here, there)
	} else if here.Blocked != "" {
		r.Reason = here.Blocked
	}
	return r
}

// machine is a host of the scenario.
type machine struct {
	spec  scenario.Host
	host  *vnet.Host
	on    string // the network that it is in now
	log   logBook
	node  *node // nil: it runs none, or is switched off
	relay *relayServer
}
