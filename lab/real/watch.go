package real

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"weft"
	"weft/lab/scenario"
)

const (
	// lookEvery is how often nodes are asked how they reach each other. Each tells when its paths changed, so looking
	// seldom blurs no time; looking often would disturb what is measured.
	lookEvery = 50 * time.Millisecond
	// wantEvery is how often a node is asked for an explanation, which keeps it looking for a direct path.
	wantEvery = 5 * time.Second
	// readmission is how long after an attempt has found a path both ends may take to use it.
	readmission = time.Second
)

// A pair is two hosts that are to reach each other.
type pair struct {
	a, b   *machine
	probed bool
	sides  [2]side // as a sees b, and as b sees a
	result scenario.PairResult
}

// A side is how one node says that it reaches the other.
type side struct {
	told time.Time // of the last change that was taken over
	path weft.PathKind
}

// A change is one that a node has told of.
type change struct {
	at   time.Time
	pair *pair
	side int
	path weft.PathKind
}

// watcher watches one run. Its lock is about what probes see, who tell by themselves.
type watcher struct {
	*world
	mu     sync.Mutex
	probed map[*pair]weft.PathKind
	wanted time.Time
	events []scenario.Event
	queue  []change // that may be older than what is still to be heard of others
}

// listPairs makes the pairs: all nodes, and whoever is probed.
func (w *world) listPairs() {
	add := func(a, b *machine, probed bool) {
		i := slices.IndexFunc(w.pairs, func(p *pair) bool { return p.a == a && p.b == b || p.a == b && p.b == a })
		if i < 0 {
			i = len(w.pairs)
			w.pairs = append(w.pairs, &pair{a: a, b: b, result: scenario.PairResult{A: a.Name, B: b.Name, Path: weft.PathNone}})
		}
		w.pairs[i].probed = w.pairs[i].probed || probed
	}
	for i, a := range w.order {
		for _, b := range w.order[i+1:] {
			if a.Role == scenario.Node && b.Role == scenario.Node && a.Member.Secret == b.Member.Secret {
				add(a, b, false)
			}
		}
	}
	for _, x := range w.Probes {
		add(w.hosts[x.A], w.hosts[x.B], true)
	}
}

// watch lets the scenario happen until it is over.
func (w *world) watch() error {
	v := &watcher{world: w, probed: map[*pair]weft.PathKind{}, events: w.story()}
	w.startProbes(v)
	w.startReaches()
	w.startFlows()
	w.startOrders()
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		looked := time.Now()
		if err := v.look(looked); err != nil {
			return err
		}
		v.settle(looked)
		w.history.SetFlows(w.flowHistories())
		w.noteReaches()
		if err := w.noteLinks(looked.Sub(w.began)); err != nil {
			return err
		}
		over := w.history.End >= w.Duration()
		_, decided := w.history.Judge(w.Scenario, over)
		if over || decided && len(v.events) == 0 && len(w.Expect) > 0 {
			v.finish()
			return nil
		}
		select {
		case <-w.ctx.Done():
			return context.Cause(w.ctx)
		case <-v.nextEvent():
		case <-tick.C:
		}
		if err := v.happen(); err != nil {
			return err
		}
	}
}

// startProbes lets other people's programs say how they reach each other.
func (w *world) startProbes(v *watcher) {
	for _, x := range w.Probes {
		i := slices.IndexFunc(w.pairs, func(p *pair) bool {
			return p.a.Name == x.A && p.b.Name == x.B || p.a.Name == x.B && p.b.Name == x.A
		})
		w.probes.Go(func() {
			w.probe(x, func(path weft.PathKind) {
				v.mu.Lock()
				defer v.mu.Unlock()
				v.probed[w.pairs[i]] = path
			})
		})
	}
}

// look asks every node how it reaches the others.
func (v *watcher) look(now time.Time) error {
	for _, m := range v.order {
		if m.node == nil || !m.running {
			continue
		}
		ctx, cancel := context.WithTimeout(v.ctx, time.Second)
		s, err := m.node.Status(ctx)
		cancel()
		if err != nil {
			if dead := m.node.Process.Err(); dead != nil {
				return dead
			}
			continue // it is starting, or busy: what it saw it tells the next time
		}
		m.learn(s)
		for _, p := range v.pairs {
			switch m {
			case p.a:
				v.hear(p, 0, s, p.b.Name)
			case p.b:
				v.hear(p, 1, s, p.a.Name)
			}
		}
	}
	if now.Sub(v.wanted) >= wantEvery {
		v.wanted = now
		return v.want()
	}
	return nil
}

// hear takes over what a node tells of one peer.
func (v *watcher) hear(p *pair, side int, s weft.Status, peer string) {
	i := slices.IndexFunc(s.Peers, func(x weft.PeerStatus) bool { return x.Name == peer })
	if i < 0 {
		return
	}
	told := &p.sides[side].told
	for _, c := range s.Peers[i].Switches {
		if c.At.After(*told) {
			*told = c.At
			v.queue = append(v.queue, change{c.At, p, side, kind(c.To)})
		}
	}
}

// settle takes over all that happened until a time of which every node has told, in order.
func (v *watcher) settle(until time.Time) {
	slices.SortStableFunc(v.queue, func(a, b change) int { return a.at.Compare(b.at) })
	n := 0
	for ; n < len(v.queue) && !v.queue[n].at.After(until); n++ {
		c := v.queue[n]
		c.pair.sides[c.side].path = c.path
		v.note(c.at, c.pair)
	}
	v.queue = slices.Delete(v.queue, 0, n)
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, p := range v.pairs {
		if path, ok := v.probed[p]; ok {
			v.history.Path(max(v.history.End, until.Sub(v.began)), p.a.Name, p.b.Name, path)
		}
	}
	v.history.End = max(v.history.End, until.Sub(v.began))
}

// note tells the history how a pair of nodes reaches each other: directly if both ends say so.
func (v *watcher) note(at time.Time, p *pair) {
	if p.probed {
		return
	}
	path := weft.PathRelay
	switch a, b := p.sides[0].path, p.sides[1].path; {
	case a == weft.PathDirect && b == weft.PathDirect:
		path = weft.PathDirect
	case a == weft.PathNone || a == "" || b == weft.PathNone || b == "":
		path = weft.PathNone
	}
	if t := max(at.Sub(v.began), 0); t >= v.history.End {
		v.history.Path(t, p.a.Name, p.b.Name, path)
	}
}

// gone notes that a machine was switched off: it reaches nobody.
func (v *watcher) gone(m *machine, at time.Time) {
	v.settle(at)
	for _, p := range v.pairs {
		for i, side := range []*machine{p.a, p.b} {
			if side == m {
				p.sides[i] = sideOf(at)
				v.note(at, p)
			}
		}
	}
}

// sideOf is a side that knows nothing, at a time.
func sideOf(at time.Time) side { return side{told: at, path: weft.PathNone} }

// want lets every node look for a direct path to every other, as traffic would.
func (v *watcher) want() error {
	for _, p := range v.pairs {
		for _, m := range []*machine{p.a, p.b} {
			other := p.b
			if m == p.b {
				other = p.a
			}
			if m.node == nil || !m.running || p.probed {
				continue
			}
			ctx, cancel := context.WithTimeout(v.ctx, time.Second)
			_, err := m.node.Explain(ctx, other.Name)
			cancel()
			if err != nil && v.ctx.Err() != nil {
				return context.Cause(v.ctx)
			}
		}
	}
	return nil
}

// finish takes the figures of every pair.
func (v *watcher) finish() {
	for _, p := range v.pairs {
		p.result.Path = v.history.At(v.history.End, p.a.Name, p.b.Name)
		if p.probed || p.a.node == nil || p.b.node == nil {
			if at, ok := v.history.First(p.a.Name, p.b.Name, weft.PathDirect); ok {
				p.result.DirectAfter = max(at, time.Nanosecond) // zero would be never
			}
			continue
		}
		p.explain(v.world)
	}
}

// explain asks both ends for their own figures, which begin when they learnt of each other.
func (p *pair) explain(w *world) {
	var docs [2]weft.Explanation
	var errs [2]error
	ctx, cancel := context.WithTimeout(w.ctx, 2*time.Second)
	defer cancel()
	docs[0], errs[0] = p.a.node.Explain(ctx, p.b.Name)
	docs[1], errs[1] = p.b.node.Explain(ctx, p.a.Name)
	r := &p.result
	if err := errors.Join(errs[:]...); err != nil {
		r.Reason = err.Error()
		return
	}
	after := max(docs[0].DirectAfterMS, docs[1].DirectAfterMS)
	if docs[0].DirectAfterMS > 0 && docs[1].DirectAfterMS > 0 {
		r.DirectAfter = time.Duration(after * float64(time.Millisecond))
	}
	r.Reason = cmp.Or(docs[0].Blocked, docs[0].Reason)
	for _, d := range docs {
		for _, a := range d.Attempts {
			r.Packets += a.Packets
		}
	}
	if r.Path == weft.PathDirect {
		first, _ := w.history.First(p.a.Name, p.b.Name, weft.PathDirect)
		r.Way = way(w.began.Add(first), docs[0], docs[1])
	}
}

// way is how a direct path was found that was first in use at some time: by the attempt that was under way then, for a
// path that a spray has opened may move to the nodes' shared sockets afterwards; or by the one whose socket it still has.
func way(first time.Time, a, b weft.Explanation) string {
	own := a.OwnSocket != 0 || b.OwnSocket != 0
	for _, doc := range []weft.Explanation{a, b} {
		for _, x := range slices.Backward(doc.Attempts) {
			until := x.At.Add(time.Duration(x.TookMS*float64(time.Millisecond)) + readmission)
			if !own && (x.At.After(first) || first.After(until)) {
				continue
			}
			switch x.Way {
			case "spray":
				return "sprayed"
			case "predict":
				return "predicted"
			}
		}
	}
	if own {
		return "sprayed"
	}
	return "plain"
}
