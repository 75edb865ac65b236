package engine

import (
	"sync"
	"sync/atomic"
	"time"

	"weft"
	"weft/policy/filter"
)

// flowShards is how many parts the memory of flows has, each with its own lock: more than goroutines that move packets, mostly.
// A power of two.
const flowShards = 16

// An enforcer is the engine's policy: the rules as they are now, and who began what. Its zero value lets everything in.
type enforcer struct {
	now     atomic.Pointer[enforced]
	setting sync.Mutex
	flows   [flowShards]struct {
		sync.Mutex
		filter.Flows
		_ [64]byte // a processor's cache line between one lock and the next
	}
	refused [filter.Verdicts]atomic.Uint64
}

// enforced is a policy with its number: 1 for the first, and one more for each.
type enforced struct {
	*filter.Policy
	generation uint32
}

// SetPolicy has packets of peers judged by this policy from now on; nil, as at first, lets everything in. What was begun stays
// begun: answers to it come in.
func (e *Engine) SetPolicy(p *filter.Policy) {
	e.enforcer.setting.Lock()
	defer e.enforcer.setting.Unlock()
	next := &enforced{Policy: p, generation: 1}
	if last := e.enforcer.now.Load(); last != nil {
		next.generation = last.generation + 1
	}
	if p == nil || p.Open() {
		next.Policy = nil
	}
	e.enforcer.now.Store(next)
}

// A gate judges the packets of one goroutine at a time.
type gate struct {
	policy *enforced
	cache  filter.Cache
	packet filter.Packet
}

// load has the gate go by the policy as it is now.
func (g *gate) load(e *Engine) {
	if now := e.enforcer.now.Load(); now != g.policy {
		g.policy = now
		g.cache.Reset()
	}
}

// shut reports whether there is something to judge by.
func (g *gate) shut() bool { return g.policy != nil && g.policy.Policy != nil }

// admits judges a packet that came from a peer, whose source address is the peer's.
func (g *gate) admits(e *Engine, p *peer, now int64, packet []byte) bool {
	at := time.Duration(now)
	if g.cache.Hit(packet, p.id, at) {
		return true
	}
	v := filter.Parse(packet, &g.packet)
	if v == filter.Allowed {
		f := &e.enforcer.flows[g.packet.Shard()%flowShards]
		f.Lock()
		v = f.Admit(at, g.policy.Policy, g.policy.generation, p.id, &g.packet)
		f.Unlock()
	}
	if v == filter.Allowed {
		g.cache.Keep(p.id, at)
		return true
	}
	e.enforcer.refused[v].Add(1)
	p.refused.count.Add(1)
	if v == filter.NoRule {
		_, proto, port := g.packet.Destination()
		p.refused.last.Store(uint32(proto)<<16 | uint32(port))
		p.refused.at.Store(now)
	}
	return false
}

// sends notes a packet that goes to a peer, and reports whether it may.
func (g *gate) sends(e *Engine, p *peer, now time.Duration, packet []byte) bool {
	if g.cache.Hit(packet, p.id, now) {
		return true
	}
	if v := filter.Parse(packet, &g.packet); v != filter.Allowed {
		if g.policy.Own(&g.packet) { // who is asked for is not asked: the receiver judges
			return true
		}
		e.enforcer.refused[v].Add(1)
		return false
	}
	f := &e.enforcer.flows[g.packet.Shard()%flowShards]
	f.Lock()
	v := f.Send(now, g.policy.Policy, &g.packet)
	f.Unlock()
	if v != filter.Allowed {
		e.enforcer.refused[v].Add(1)
		return false
	}
	g.cache.Keep(p.id, now)
	return true
}

// refusals is what was not let in from a peer.
type refusals struct {
	count atomic.Uint64
	last  atomic.Uint32 // that no rule allowed: protocol and port
	at    atomic.Int64  // of last, in nanoseconds after Engine.began; 0: never
}

// Refusals is what a policy did not let in from a peer.
type Refusals struct {
	Count uint64
	// At is when a packet last came that no rule allows, and Proto and Port are where to; a zero At: never.
	At    time.Time
	Proto uint8
	Port  uint16
}

// Refusals tells what was not let in from a peer since the engine knows it.
func (e *Engine) Refusals(id weft.NodeID) Refusals {
	p := e.peer(id)
	if p == nil {
		return Refusals{}
	}
	last := p.refused.last.Load()
	return Refusals{Count: p.refused.count.Load(), At: e.at(p.refused.at.Load()), Proto: uint8(last >> 16), Port: uint16(last)}
}

// Refused counts the packets that the policy stopped, by reason (filter.Verdict.String).
func (e *Engine) Refused() map[string]uint64 {
	m := make(map[string]uint64, filter.Verdicts)
	for v := filter.Allowed + 1; int(v) < filter.Verdicts; v++ {
		m[v.String()] = e.enforcer.refused[v].Load()
	}
	return m
}
