package wireguard

import (
	"encoding/binary"
	"fmt"
	"maps"
	"math/bits"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/crypto/curve25519"
)

// An end is a Device with one peer and the fast half that a data plane would be, in the simplest form.
type end struct {
	name     string
	d        *Device
	p        *Peer
	send     func(msg []byte)
	sessions map[uint32]*Session
	windows  map[*Session]*Window
	counters map[*Session]uint64
	current  *Session
	waiting  [][]byte
	activity Activity
	actions  Actions
	next     time.Time

	got      [][]byte
	errs     []error
	gaveUp   int
	begun    int // handshakes that ended in a session
	sent     [5]int
	keepRecv int
}

var here = netip.MustParseAddrPort("192.0.2.1:51820")

func newEnd(name string, with *primitives, private Key, peer PeerConfig, random func([]byte)) (*end, error) {
	e := &end{
		name: name, d: newDevice(Config{Private: private, Rand: random}, with),
		sessions: map[uint32]*Session{}, windows: map[*Session]*Window{}, counters: map[*Session]uint64{},
	}
	p, err := e.d.AddPeer(peer)
	e.p = p
	return e, err
}

// clone is another end that is as this one is. What never changes is shared.
func (e *end) clone(random func([]byte)) *end {
	c, d, p := *e, *e.d, *e.p
	c.d, c.p = &d, &p
	moved := map[*Session]*Session{nil: nil}
	move := func(s *Session) *Session {
		if _, ok := moved[s]; !ok {
			m := *s
			m.Peer, moved[s] = &p, &m
		}
		return moved[s]
	}
	p.device, d.rand, d.touched, d.timers = &d, random, nil, nil
	if p.touched {
		d.touched = []*Peer{&p}
	}
	if p.place >= 0 {
		d.timers = timers{&p}
	}
	if p.handshake != nil {
		hs := *p.handshake
		p.handshake = &hs
	}
	p.current, p.next, p.old = move(p.current), move(p.next), [2]*Session{move(p.old[0]), move(p.old[1])}
	d.byKey, d.guard.limited = map[Key]*Peer{p.public: &p}, maps.Clone(d.guard.limited)
	d.indices = make(map[uint32]owner, len(e.d.indices))
	for i, o := range e.d.indices {
		d.indices[i] = owner{&p, move(o.session)}
	}
	c.sessions, c.windows, c.counters = map[uint32]*Session{}, map[*Session]*Window{}, map[*Session]uint64{}
	for i, s := range e.sessions {
		w := *e.windows[s]
		c.sessions[i], c.windows[move(s)], c.counters[move(s)] = move(s), &w, e.counters[s]
	}
	c.current, c.actions = move(e.current), Actions{}
	c.waiting, c.got, c.errs = slices.Clone(e.waiting), slices.Clone(e.got), slices.Clone(e.errs)
	return &c
}

func (e *end) out(msg []byte) {
	e.sent[msg[0]]++
	e.send(msg)
}

// do does what the Device wants.
func (e *end) do(now time.Time) {
	for _, c := range e.actions.Changes {
		switch c.What {
		case Began:
			e.sessions[c.Session.Local] = c.Session
			e.windows[c.Session] = &Window{}
			e.begun++
		case Current:
			e.current = c.Session
		case Ended:
			delete(e.sessions, c.Session.Local)
			delete(e.windows, c.Session)
			delete(e.counters, c.Session)
			if e.current == c.Session {
				e.current = nil
			}
		case GaveUp:
			e.gaveUp++
			e.waiting = nil
		}
	}
	for _, m := range e.actions.Send {
		e.out(m.Message)
	}
	waiting, keep := e.waiting, len(e.actions.Keepalives) > 0
	if e.current != nil && e.current.Usable(now) && len(waiting) > 0 {
		e.waiting = nil
		for _, b := range waiting {
			e.packet(now, b)
		}
	} else if keep {
		e.packet(now, nil)
	}
}

// packet sends a packet of the overlay; an empty one is a keepalive.
func (e *end) packet(now time.Time, b []byte) {
	s := e.current
	if s == nil || !s.Usable(now) {
		if len(b) > 0 {
			e.waiting = append(e.waiting, b)
			e.d.Want(now, e.p, &e.actions)
			e.do(now)
			e.poll(now)
		}
		return
	}
	n := e.counters[s]
	e.counters[s]++
	padded := make([]byte, Padded(len(b), 1420))
	copy(padded, b)
	e.out(s.Seal(make([]byte, 0, len(padded)+Overhead), n, padded))
	e.activity.Sent, e.activity.Counter = now, n
	if len(b) > 0 {
		e.activity.DataSent = now
	}
	e.d.Observe(e.p, e.activity)
	e.poll(now)
}

// take takes what came.
func (e *end) take(now time.Time, msg []byte) {
	index, counter, ok := Transport(msg)
	if !ok {
		if err := e.d.Handle(now, here, msg, false, &e.actions); err != nil {
			e.errs = append(e.errs, err)
		}
		e.do(now)
		e.poll(now)
		return
	}
	s := e.sessions[index]
	if s == nil {
		e.errs = append(e.errs, fmt.Errorf("no session %08x", index))
		return
	}
	packet, ok := s.Open(nil, msg)
	if !ok {
		e.errs = append(e.errs, ErrUnauthentic)
		return
	}
	if !e.windows[s].Take(counter) {
		e.errs = append(e.errs, ErrReplay)
		return
	}
	e.d.Confirm(now, s, &e.actions)
	e.do(now)
	e.activity.Received = now
	if len(packet) > 0 {
		e.activity.DataReceived = now
		e.got = append(e.got, packet)
	} else {
		e.keepRecv++
	}
	e.d.Observe(e.p, e.activity)
	e.poll(now)
}

func (e *end) poll(now time.Time) {
	e.d.Poll(now, &e.actions)
	e.next = e.actions.Next
	// Whoever looks at the peer itself finds the same.
	var rest Actions
	if due := e.d.poll(now, e.p, &rest); due != e.next || len(rest.Send)+len(rest.Keepalives)+len(rest.Changes) > 0 {
		panic(fmt.Sprintf("%s: Poll is due at %v by the timers, at %v by the peer, with %+v left to do", e.name, e.next, due, rest))
	}
	if len(e.actions.Send)+len(e.actions.Keepalives)+len(e.actions.Changes) > 0 {
		e.do(now)
	}
}

// seeded draws keys in an order of their own, so that the first, second ... key is the same whatever else is drawn: products
// of keys are remembered.
func seeded(seed uint64) func([]byte) {
	keys, others := rand.NewPCG(seed, 3), rand.NewPCG(seed, 4)
	return func(b []byte) {
		rng := others
		if len(b) == len(Key{}) {
			rng = keys
		}
		for len(b) > 0 {
			var word [8]byte
			binary.LittleEndian.PutUint64(word[:], rng.Uint64())
			b = b[copy(b, word[:]):]
		}
	}
}

// known are results of X25519, which takes nearly all the time of a handshake: the worlds of tests draw the same keys again
// and again.
var known = struct {
	sync.Mutex
	products map[[64]byte]Key
}{products: map[[64]byte]Key{}}

func curveKnown(scalar, point []byte) ([]byte, error) {
	var in [64]byte
	copy(in[:], scalar)
	copy(in[32:], point)
	known.Lock()
	defer known.Unlock()
	if out, ok := known.products[in]; ok {
		return out[:], nil
	}
	out, err := curve25519.X25519(scalar, point)
	if err == nil && len(known.products) < 1<<17 {
		known.products[in] = Key(out)
	}
	return out, err
}

// remembered gives what is genuine, and cheap what is none and takes next to no time: it has what both ends of a handshake
// rest on, that products of keys are the same either way, and that what differs at first differs at last.
var (
	remembered = &primitives{curveKnown, hmacOf}
	cheap      = &primitives{curveCheap, hmacCheap}
)

// curveCheap multiplies odd numbers of 64 bits, in each of the four places of a key.
func curveCheap(scalar, point []byte) ([]byte, error) {
	out := make([]byte, 0, len(Key{}))
	for i := 0; i < len(Key{}); i += 8 {
		out = binary.LittleEndian.AppendUint64(out, (binary.LittleEndian.Uint64(scalar[i:])|1)*(binary.LittleEndian.Uint64(point[i:])|1))
	}
	return out, nil
}

func hmacCheap(k, a, b []byte) (out Key) {
	x, y := uint64(0x9e3779b97f4a7c15), uint64(0xbf58476d1ce4e5b9)
	for i, in := range [...][]byte{k, a, b} {
		y += uint64(len(in))<<8 + uint64(i)
		for len(in) > 0 {
			var word [8]byte
			in = in[copy(word[:], in):]
			hi, lo := bits.Mul64(x^binary.LittleEndian.Uint64(word[:]), 0xd6e8feb86659fd93)
			x, y = lo^y, bits.RotateLeft64(y, 29)+hi
		}
	}
	for i := 0; i < len(out); i += 8 {
		hi, lo := bits.Mul64(x+uint64(i), y|1)
		x, y = x^hi, y+lo
		binary.LittleEndian.PutUint64(out[i:], x^lo)
	}
	return out
}

func publicOf(with *primitives, private *Key) Key {
	return newDevice(Config{Private: *private}, with).public
}

func newKey(random func([]byte)) (k Key) {
	random(k[:])
	k[0] &= 248
	k[31] = k[31]&127 | 64
	return k
}

func addrPortPlus(a netip.AddrPort) netip.AddrPort { return netip.AddrPortFrom(a.Addr(), a.Port()+1) }

func addrOf(i int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}), 1)
}
