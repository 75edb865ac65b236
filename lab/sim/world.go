package sim

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"time"

	"weft"
	"weft/key"
	"weft/lab/scenario"
	"weft/lab/vnet"
	"weft/wire"
)

// A world is one run.
type world struct {
	s        scenario.Scenario
	o        scenario.Options
	net      *vnet.Network
	routers  map[string]*vnet.Router
	machines []*machine      // in the scenario's order
	down     map[string]bool // links that are down, by the names that events have for them
	cut      map[string]bool // those that carry nothing in some direction, and do not say so
	nodes    []*node         // by number, also those that are switched off
	servers  []*relayServer  // relays, the server's first
	server   *coordinator
	issuer   key.SigningPrivate
	network  [8]byte // of tickets
	history  scenario.History
	// lastEvent is when the last event happens; before the beginning if there is none.
	lastEvent time.Duration
	flows     []*flow
	trace     *trace
	err       error // of an event that could not be
}

// newWorld lays a scenario out and switches on what is on at the beginning.
func newWorld(s scenario.Scenario, o scenario.Options) (*world, error) {
	w := &world{s: s, o: o, net: vnet.New(o.Seed), routers: map[string]*vnet.Router{}, down: map[string]bool{}, cut: map[string]bool{}, issuer: key.NewSigning()}
	if o.KeepTrace {
		w.trace = newTrace(w)
	}
	for round := range len(s.Routers) + 1 { // each after the one that it is on, in whatever order they stand
		for _, r := range s.Routers {
			chose := len(r.NAT.Public) > 0 || round > 0 // who chose addresses comes before those who take any
			if outer := w.segment(r.On); chose && outer != nil && w.routers[r.Name] == nil {
				if err := w.addRouter(outer, r); err != nil {
					return nil, err
				}
			}
		}
	}
	if err := w.addMachines(); err != nil {
		return nil, err
	}
	for _, f := range s.Flows {
		w.flows = append(w.flows, newFlow(w, f))
	}
	w.lastEvent = -1
	for _, e := range s.Story() {
		w.lastEvent = max(w.lastEvent, e.At)
		w.net.After(e.At, func(now time.Time) {
			w.say("%s", e)
			if err := w.happen(now, e); err != nil && w.err == nil {
				w.err = fmt.Errorf("line %d: %s: %w", e.Line, e, err)
			}
		})
	}
	for _, m := range w.machines {
		if m.spec.Role == scenario.Server || m.spec.Role == scenario.Relay {
			w.start(w.net.Now(), m)
		}
	}
	for _, m := range w.machines {
		if m.spec.Role == scenario.Node && m.spec.Start == 0 {
			w.start(w.net.Now(), m)
		} else if m.spec.Start > 0 {
			w.net.After(m.spec.Start, func(now time.Time) { w.start(now, m) })
		}
	}
	return w, nil
}

func (w *world) elapsed() time.Duration { return w.net.Elapsed() }

// say tells of progress.
func (w *world) say(format string, args ...any) {
	if w.o.Log != nil {
		w.o.Log(fmt.Sprintf("%7.3fs  ", w.elapsed().Seconds()) + fmt.Sprintf(format, args...))
	}
}

// segment is a network of the scenario's; nil while its router is not there.
func (w *world) segment(name string) *vnet.Segment {
	if name == scenario.Internet {
		return w.net.Internet()
	}
	if r := w.routers[name]; r != nil {
		return r.Inside()
	}
	return nil
}

func (w *world) addRouter(outer *vnet.Segment, r scenario.Router) error {
	c := r.NAT
	if c.Mapping == weft.NoNAT {
		c.Allocation, c.Step = weft.AllocationUnknown, 0
	}
	if c.Mapping != weft.NoNAT && len(c.Public) == 0 {
		for range max(r.PoolSize, 1) {
			a, err := outer.NewAddr()
			if err != nil {
				return fmt.Errorf("%s: %w", r.Name, err)
			}
			c.Public = append(c.Public, a)
		}
	}
	router, err := outer.AddRouter(r.Name, c, r.Link.Out)
	if err == nil {
		err = router.SetLinks(r.Link.Out, r.Link.In)
	}
	if err != nil {
		return err
	}
	if w.routers[r.Name] = router; !r.IPv6 {
		return nil
	}
	return router.EnableIPv6(vnet.NATConfig{
		Mapping: weft.NoNAT, Filtering: r.NAT.Filtering, Timeout: r.NAT.Timeout, RefreshInbound: r.NAT.RefreshInbound,
		OpensLate: r.NAT.OpensLate, BlockUDP: r.NAT.BlockUDP,
	})
}

// addMachines adds the hosts, and what runs on them as far as it never changes.
func (w *world) addMachines() error {
	for _, h := range w.s.Hosts {
		seg := w.segment(h.On)
		if seg == nil {
			return fmt.Errorf("%s is on %s, which is no network", h.Name, h.On)
		}
		host, err := seg.AddHost(h.Name, h.Link.Out)
		if err == nil {
			err = host.SetLinks(h.Link.Out, h.Link.In)
		}
		if err != nil {
			return err
		}
		for i, g := range h.Legs()[1:] {
			leg, err := host.AddLeg(h.LegName(i+1), w.segment(g.On), h.Link.Out)
			if err == nil {
				err = leg.SetLinks(h.Link.Out, h.Link.In)
			}
			if err != nil {
				return err
			}
		}
		if h.IPv6 {
			if err := host.EnableIPv6(); err != nil {
				return err
			}
		}
		m := &machine{spec: h, host: host, on: h.On}
		w.machines = append(w.machines, m)
		switch h.Role {
		case scenario.Server, scenario.Relay:
			m.relay = newRelayServer(w, m)
			w.servers = append(w.servers, m.relay)
			if h.Role == scenario.Server {
				w.server = newCoordinator(w, m)
			}
		case scenario.Node:
			w.nodes = append(w.nodes, newNode(w, m, weft.NodeID(len(w.nodes)+1)))
		}
	}
	slices.SortStableFunc(w.servers, func(a, b *relayServer) int { return int(a.m.spec.Role) - int(b.m.spec.Role) })
	for i, r := range w.servers {
		r.id = weft.RelayID(i + 1)
	}
	return nil
}

func (w *world) machine(name string) *machine {
	i := slices.IndexFunc(w.machines, func(m *machine) bool { return m.spec.Name == name })
	if i < 0 {
		return nil
	}
	return w.machines[i]
}

// start switches on what runs on a machine.
func (w *world) start(now time.Time, m *machine) {
	if m.relay != nil {
		m.relay.start(now)
		if w.server != nil && w.server.m == m {
			w.server.start(now)
		}
	}
	for _, n := range w.nodes {
		if n.m == m {
			n.start(now)
		}
	}
}

func (w *world) stop(now time.Time, m *machine) {
	if m.relay != nil {
		m.relay.stop(now)
		if w.server != nil && w.server.m == m {
			w.server.stop()
		}
	}
	for _, n := range w.nodes {
		if n.m == m {
			n.stop(now)
		}
	}
}

// happen lets an event happen.
func (w *world) happen(now time.Time, e scenario.Event) (err error) {
	switch e.Verb {
	case scenario.Down, scenario.Up, scenario.Cut, scenario.Mend, scenario.Set:
		return w.letLinks(now, e)
	}
	name := e.Args[0]
	r, m := w.routers[name], w.machine(name)
	switch {
	case r == nil && m == nil:
		return fmt.Errorf("there is no %s", name)
	case m == nil && (e.Verb == scenario.Move || e.Verb == scenario.Restart || e.Verb == scenario.Stop || e.Verb == scenario.Start):
		return fmt.Errorf("%s is no host", name)
	case r == nil && (e.Verb == scenario.Block || e.Verb == scenario.Allow || e.Verb == scenario.Forget || e.Verb == scenario.Rebind):
		return fmt.Errorf("%s is no router", name)
	}
	switch e.Verb {
	case scenario.Block, scenario.Allow:
		r.SetBlockUDP(e.Verb == scenario.Block)
	case scenario.Forget:
		r.NAT().Forget()
		if f := r.Firewall6(); f != nil {
			f.Forget()
		}
	case scenario.Rebind:
		r.NAT().Rebind(now)
	case scenario.Readdress:
		if r != nil {
			return r.Readdress()
		}
		return w.move(now, m, m.on)
	case scenario.Move:
		return w.move(now, m, e.Args[1])
	case scenario.Stop:
		w.stop(now, m)
	case scenario.Start:
		w.start(now, m)
	case scenario.Restart:
		w.stop(now, m)
		w.net.After(restartTakes, func(now time.Time) { w.start(now, m) })
	default:
		return fmt.Errorf("%q is nothing that can happen", e.Verb)
	}
	return nil
}

// restartTakes is how long a program is away that is stopped and started.
const restartTakes = 500 * time.Millisecond

// move takes a machine to another network, or to another address in the same.
func (w *world) move(now time.Time, m *machine, to string) error {
	seg := w.segment(to)
	if seg == nil {
		return fmt.Errorf("%s is no network", to)
	}
	out, in := m.host.Links()
	if err := errors.Join(m.host.Move(seg, out), m.host.SetLinks(out, in)); err != nil {
		return err
	}
	m.on = to
	if w.down[m.spec.Name] {
		m.host.SetUp(false)
	}
	if m.node != nil {
		m.node.networkChanged(now)
	}
	return nil
}

// leg is how long a packet takes from a machine to the internet, or back, and whether one gets there at all: by the first
// link that is up, as the machine's routes say. It is what streams are made of, which no NAT keeps from passing.
func (w *world) leg(m *machine) (delay time.Duration, up bool) {
	index, places := 0, m.spec.Legs()
	for i := range places {
		if !w.down[m.spec.LegName(i)] {
			index = i
			break
		}
	}
	at, name := places[index].On, m.spec.LegName(index)
	if len(places) == 1 {
		at = m.on
	}
	out, _ := m.host.Legs()[index].Links()
	delay, up = out.Delay, !w.down[name] && !w.cut[name]
	for at != scenario.Internet {
		out, _ := w.routers[at].Links()
		delay += out.Delay
		up = up && !w.down[at] && !w.cut[at]
		at = w.s.Router(at).On
	}
	return delay, up
}

// way is the same between two machines.
func (w *world) way(a, b *machine) (delay time.Duration, up bool) {
	x, upX := w.leg(a)
	y, upY := w.leg(b)
	return x + y, upX && upY
}

// ticket is a node's word for relays.
func (w *world) ticket(id weft.NodeID, k key.NodePublic) []byte {
	return wire.SignTicket(nil, wire.Ticket{Node: id, Network: w.network, Key: k, NotAfter: vnet.Epoch.Add(2 * scenario.MaxLimit)}, w.issuer)
}

// random fills b from the run's source of chance.
func (w *world) random(b []byte) {
	r := w.net.Rand()
	for len(b) > 0 {
		v := r.Uint64()
		for i := 0; i < 8 && len(b) > 0; i++ {
			b[0] = byte(v)
			v >>= 8
			b = b[1:]
		}
	}
}

// noted enters how a pair of nodes reaches each other now.
func (w *world) noted(a, b *node) {
	path := weft.PathNone
	if p, q := a.peer(b.id), b.peer(a.id); p != nil && q != nil {
		x, y := p.agent.Selected().Method, q.agent.Selected().Method
		path = min(x, y).Kind() // the order of methods is that of preference
	}
	w.history.Path(w.elapsed(), a.name(), b.name(), path)
}

// maxLog bounds what is kept of one machine's log, in bytes.
const maxLog = 64 << 10

// A logBook is what a machine has to say.
type logBook struct{ bytes.Buffer }

func (l *logBook) printf(at time.Duration, format string, args ...any) {
	if l.Len() < maxLog {
		fmt.Fprintf(l, "%9.3fs %s\n", at.Seconds(), fmt.Sprintf(format, args...))
	}
}
