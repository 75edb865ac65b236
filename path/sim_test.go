package path

import (
	"container/heap"
	"encoding/binary"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"
	"time"

	"weft"
	"weft/lab/vnet"
	"weft/wire"
)

var (
	seedFlag  = flag.Uint64("path.seed", 0, "run the simulations with this seed alone")
	seedsFlag = flag.Int("path.seeds", 0, "how many seeds each simulation is run with (0: its own number)")
)

// forSeeds runs a property with many seeds. One that fails is a subtest by its own name, and is run alone by
// -path.seed.
func forSeeds(t *testing.T, n int, property func(t *testing.T, seed uint64)) {
	t.Helper()
	t.Parallel()
	if *seedsFlag > 0 {
		n = *seedsFlag
	} else if testing.Short() {
		n = max(n/10, 3)
	}
	first := uint64(1)
	if *seedFlag != 0 {
		first, n = *seedFlag, 1
	}
	for seed := first; seed < first+uint64(n); seed++ {
		ok := t.Run(fmt.Sprintf("seed-%d", seed), func(t *testing.T) { property(t, seed) })
		if !ok {
			t.Fatalf("seed %d fails; run it alone with: go test ./path -run '^%s$' -path.seed=%d", seed, t.Name(), seed)
		}
	}
}

// A world is two nodes, a relay, and what lies between them, in virtual time.
type world struct {
	t      *testing.T
	rng    *rand.Rand
	now    time.Time
	start  time.Time
	events events
	serial int

	a, b  *host
	hosts []*host

	oneWay, relayLeg, lan time.Duration // delays
	jitter                time.Duration
	loss, relayLoss       float64
	prompt                bool // observe as soon as data begins to flow
	uneven                bool // who boots later has the other's candidates from the coordinator; the other has nothing
	trace                 []string
}

// A fault is what keeps datagrams of a host from getting out directly.
type fault struct {
	udp      bool // nothing over UDP in or out
	tcp      bool // nothing by connections
	direct   bool // direct packets from this host
	data     bool // direct data from this host
	maxBytes int  // direct packets from this host that are longer; 0: none
	whole    int  // direct packets from this host that are longer and must be whole
	card     int  // longer ones that must be whole cannot be sent at all
	relayed  int  // packets over the relay's UDP from this host that are longer
	relayUDP bool // the UDP of the relay alone, both ways
	// relayData is data from this host by the UDP of the relay.
	relayData bool
}

// A host is one node: an agent, its sockets, its counters.
type host struct {
	w        *world
	name     string
	agent    *Agent
	session  uint32
	actions  Actions
	up       bool
	eager    bool
	inside   netip.AddrPort
	nat      *vnet.NAT // nil: on the internet itself
	uplinks  []*uplink // in place of the one, of a host with several
	spares   map[weft.LinkID]netip.AddrPort
	lastLink weft.LinkID
	most     int       // spare sockets at once
	noNAT    bool      // netcheck told nothing
	starved  time.Time // until then it has no processor
	bonds    bool      // members are wanted
	metrics  map[weft.LinkID]int
	members  []Member // as of the last change
	joins    int      // of members, so far
	bonding  bondFlow
	tcp      tcpHost
	told     *weft.NAT // instead of what is so
	leads    bool
	budget   *Budget
	mtu      int              // of the agent; 0: it does not search
	sizes    map[weft.Via]int // as it says
	shortest int              // of any direct way
	noUDP    bool             // the relay is not bound over UDP
	noStream bool
	bound    netip.AddrPort // as the relay sees it
	streamAt time.Time      // arrival of the last stream frame, which is in order
	wakeAt   time.Time
	fault    fault
	counters []Traffic
	learned  map[netip.AddrPort]bool
	ticks    int
	active   time.Time

	pings, sent, polls int
	whole              int // pings of some length
	switches           []Switch
	flow               flowStats
}

// flowStats is what became of the data that a host sends.
type flowStats struct {
	every    time.Duration
	size     int
	until    time.Time
	sent     uint64
	received []time.Time // arrival by sequence number at the other side; zero: not (yet)
	sentAt   []time.Time
	noWay    int
	strange  int // arrived from an address that was not learned
}

type payload struct {
	from, to *host
	m        wire.PeerMessage
	seq      uint64 // of data, where m is nil
	size     int
	relayed  bool
	ttl      uint8
	whole    bool
	pooled   bool // of a bondFlow
}

var (
	relayAddr = netip.MustParseAddrPort("198.51.100.1:3478")
	relayUDP  = weft.Via{Method: weft.RelayUDP, Relay: 1}
	relayTCP  = weft.Via{Method: weft.RelayStream, Relay: 1}
)

func newWorld(t *testing.T, seed uint64) *world {
	w := &world{t: t, rng: rand.New(rand.NewPCG(seed, 7)), start: time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)}
	w.now = w.start
	w.oneWay = time.Duration(1+w.rng.IntN(40)) * time.Millisecond
	w.relayLeg = w.oneWay/2 + time.Duration(1+w.rng.IntN(30))*time.Millisecond
	w.jitter = time.Duration(w.rng.IntN(3)) * time.Millisecond
	w.lan = 200 * time.Microsecond
	w.prompt = w.rng.IntN(2) == 0
	w.a = w.newHost("a", "10.0.1.2:41641")
	w.b = w.newHost("b", "10.0.2.2:41641")
	w.hosts[w.rng.IntN(2)].leads = true
	return w
}

func (w *world) newHost(name, inside string) *host {
	h := &host{w: w, name: name, inside: netip.MustParseAddrPort(inside), learned: map[netip.AddrPort]bool{}}
	w.hosts = append(w.hosts, h)
	return h
}

// transmit sends from a host by a way.
func (w *world) transmit(h *host, via weft.Via, p payload) {
	p.from, p.to = h, w.other(h)
	switch via.Method {
	case weft.Direct:
		w.direct(h, via, p)
	case weft.DirectTCP:
		w.byConnection(h, via, p)
	case weft.RelayUDP:
		p.relayed = true
		if h.noUDP || h.fault.udp || h.fault.relayUDP || h.fault.relayData && p.m == nil ||
			h.fault.relayed > 0 && p.size > h.fault.relayed || w.lost(w.relayLoss) {
			return
		}
		if _, ok := h.out(h.inside, relayAddr); !ok {
			return
		}
		w.after(w.delay(w.relayLeg), func() { w.relay(p, weft.RelayUDP) })
	case weft.RelayStream:
		p.relayed = true
		if !h.noStream {
			w.after(w.relayLeg+w.jitter, func() { w.relay(p, weft.RelayStream) })
		}
	}
}

// relay forwards: by UDP what came by UDP, by the stream what came by a stream, as far as the receiver has both.
func (w *world) relay(p payload, came weft.Method) {
	to := p.to
	if !to.up {
		return
	}
	udp := !to.noUDP && to.bound.IsValid()
	if came == weft.RelayStream && !to.noStream || !udp {
		if to.noStream {
			return
		}
		at := latest(w.now.Add(w.relayLeg+w.jitter), to.streamAt)
		to.streamAt = at
		session := to.session
		w.at(at, func() { to.receive(session, relayTCP, p) })
		return
	}
	if w.lost(w.relayLoss) {
		return
	}
	w.after(w.delay(w.relayLeg), func() {
		if to.fault.udp || to.fault.relayUDP {
			return
		}
		if inside, ok := to.in(relayAddr, to.bound); !ok || inside != to.inside {
			return
		}
		to.receive(to.session, relayUDP, p)
	})
}

// hops are the routers between two homes.
const hops = 10

// direct sends a datagram over the internet, or over a LAN.
func (w *world) direct(h *host, via weft.Via, p payload) {
	from, to := h.inside, via.Addr
	if via.Link != 0 {
		if from = h.spares[via.Link]; via.Link < FirstSpare {
			if from = h.leaves(via.Link); !from.IsValid() {
				return // the link is no more
			}
		}
		if !from.IsValid() {
			w.t.Fatalf("%s sends by a socket that is closed", h.name)
		}
	}
	if to.Addr().IsPrivate() {
		if h.nat != p.to.nat || to != p.to.inside || h.nat == nil {
			return
		}
		w.after(w.lan, func() { p.to.receive(p.to.session, weft.DirectVia(0, from), p) })
		return
	}
	if w.lost(w.loss) {
		return
	}
	if h.nat != nil && h.nat.Owns(to.Addr()) {
		outside, inside, v := h.nat.Hairpin(w.now, from, to)
		if link, ok := p.to.socket(inside); ok && v.Passed() && !h.fault.udp && !h.fault.direct && p.to.nat == h.nat {
			w.after(w.lan/2, func() { p.to.receive(p.to.session, weft.DirectVia(link, outside), p) })
		}
		return
	}
	from, ok := h.out(from, to)
	f := h.fault
	if !ok || p.ttl != 0 && p.ttl <= hops || f.udp || f.direct || f.data && p.m == nil || f.maxBytes > 0 && p.size > f.maxBytes ||
		p.whole && f.whole > 0 && p.size > f.whole {
		return
	}
	w.after(w.delay(w.oneWay), func() {
		for _, x := range w.hosts {
			if !x.owns(to.Addr()) || x.fault.udp || x == h && x.nat == nil {
				continue
			}
			inside, ok := x.in(from, to)
			if !ok {
				return
			}
			if link, ok := p.to.socket(inside); ok {
				p.to.receive(p.to.session, weft.DirectVia(link, from), p)
			}
			return
		}
	})
}

// receive is a datagram's arrival at a host.
func (h *host) receive(session uint32, via weft.Via, p payload) {
	if !h.up || h.session != session {
		return
	}
	if h.w.now.Before(h.starved) { // it lies in a socket meanwhile
		h.w.at(h.starved.Add(time.Duration(h.w.rng.IntN(5000))*time.Microsecond), func() { h.receive(session, via, p) })
		return
	}
	if p.m != nil {
		h.agent.Handle(h.w.now, via, p.m)
		h.poll()
		return
	}
	if p.pooled {
		h.pooled(p)
		h.count(via, p.size, false)
		return
	}
	f := &p.from.flow
	if via.Method == weft.Direct && !h.learned[via.Addr] {
		f.strange++
		return
	}
	f.received[p.seq] = h.w.now
	h.count(via, p.size, false)
}

func (w *world) lost(p float64) bool { return p > 0 && w.rng.Float64() < p }

func (w *world) delay(d time.Duration) time.Duration {
	if w.jitter > 0 {
		d += time.Duration(w.rng.Int64N(int64(w.jitter)))
	}
	return d
}

func (w *world) note(format string, args ...any) {
	w.trace = append(w.trace, fmt.Sprintf("%9.3fs %s", w.now.Sub(w.start).Seconds(), fmt.Sprintf(format, args...)))
}

// fail ends the test with what happened.
func (w *world) failf(format string, args ...any) {
	w.t.Helper()
	w.t.Fatalf("%s\none way %v, relay leg %v, jitter %v, prompt %v\n%s", fmt.Sprintf(format, args...),
		w.oneWay, w.relayLeg, w.jitter, w.prompt, strings.Join(w.trace, "\n"))
}

// run goes on for a time.
func (w *world) run(d time.Duration) {
	end := w.now.Add(d)
	for len(w.events) > 0 && w.events[0].at <= end.Sub(w.start) {
		w.step()
	}
	w.now = end
}

// until goes on until something is so, and returns how long that took; it fails the test after a limit.
func (w *world) until(limit time.Duration, what string, so func() bool) time.Duration {
	w.t.Helper()
	begin := w.now
	for !so() {
		if len(w.events) == 0 || w.events[0].at > begin.Add(limit).Sub(w.start) {
			w.failf("not within %v: %s", limit, what)
		}
		w.step()
	}
	return w.now.Sub(begin)
}

func (w *world) bothDirect() bool {
	return w.a.up && w.b.up && w.a.agent.Selected().Method == weft.Direct && w.b.agent.Selected().Method == weft.Direct
}

func (w *world) both(m weft.Method) func() bool {
	return func() bool { return w.a.agent.Selected().Method == m && w.b.agent.Selected().Method == m }
}

func (w *world) after(d time.Duration, do func()) { w.at(w.now.Add(d), do) }

func (w *world) at(t time.Time, do func()) {
	w.serial++
	heap.Push(&w.events, event{t.Sub(w.start), w.serial, do})
}

// step does the next event.
func (w *world) step() {
	e := heap.Pop(&w.events).(event)
	w.now = w.start.Add(e.at)
	e.do()
}

// An event is small: most of a simulation's time goes into its queue.
type event struct {
	at     time.Duration // since the start
	serial int
	do     func()
}

type events []event

func (e events) Len() int { return len(e) }
func (e events) Less(i, j int) bool {
	return e[i].at < e[j].at || e[i].at == e[j].at && e[i].serial < e[j].serial
}
func (e events) Swap(i, j int) { e[i], e[j] = e[j], e[i] }
func (e *events) Push(x any)   { *e = append(*e, x.(event)) }
func (e *events) Pop() any {
	old := *e
	x := old[len(old)-1]
	*e = old[:len(old)-1]
	return x
}

// seededRand is a source of transaction IDs for tests without a world.
func seededRand(seed uint64) func([]byte) {
	rng := rand.New(rand.NewPCG(seed, 1))
	return func(b []byte) {
		for len(b) > 0 {
			var x [8]byte
			binary.LittleEndian.PutUint64(x[:], rng.Uint64())
			b = b[copy(b, x[:]):]
		}
	}
}
