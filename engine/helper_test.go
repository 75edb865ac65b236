package engine

import (
	"encoding/binary"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"weft"
	"weft/engine/segment"
	"weft/host"
	"weft/key"
	"weft/wire"
)

// patience is how long a test waits for what must come over loopback on a busy machine.
const patience = 20 * time.Second

// eventually polls for what only real sockets and goroutines can bring about.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	deadline := time.After(patience)
	for tick := time.NewTicker(2 * time.Millisecond); ; {
		if ok() {
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("did not come about: %s", what)
		}
	}
}

// bell is what wakes who waits for a device, and what ends it: devices embed it.
type bell struct {
	woken  chan struct{}
	closed chan struct{}
	once   *sync.Once
}

func newBell() bell {
	return bell{woken: make(chan struct{}, 1), closed: make(chan struct{}), once: new(sync.Once)}
}

func (b *bell) Wake() {
	select {
	case b.woken <- struct{}{}:
	default:
	}
}

func (b *bell) Offloads() Offloads { return Offloads{TCP: true, UDP: true} }
func (b *bell) Close() error {
	b.once.Do(func() { close(b.closed) })
	return nil
}

// memTUN is a device of channels.
type memTUN struct {
	bell
	out chan []byte // to the engine
	in  chan []byte // from the engine

	mu    sync.Mutex
	first []byte // taken out by who waited for it

	echoes  atomic.Bool // what is written is answered
	answers chan []byte // which wakes nobody
}

func newMemTUN() *memTUN {
	return &memTUN{out: make(chan []byte, 256), in: make(chan []byte, 1<<15), bell: newBell(), answers: make(chan []byte, 256)}
}

// frame puts a virtio-net header in front.
func frame(buf, p []byte) int {
	clear(buf[:segment.HeaderSize])
	return segment.HeaderSize + copy(buf[segment.HeaderSize:], p)
}

// Await keeps others from reading meanwhile: it has to take a packet out to see it.
func (m *memTUN) Await(most time.Duration) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.first != nil {
		return nil
	}
	var late <-chan time.Time
	if most >= 0 {
		late = time.After(most)
	}
	select {
	case m.first = <-m.out:
	case <-m.closed:
		return os.ErrClosed
	case <-m.woken:
	case <-late:
	}
	return nil
}

func (m *memTUN) TryRead(buf []byte) (int, error) {
	select {
	case p := <-m.answers:
		return frame(buf, p), nil
	default:
	}
	if !m.mu.TryLock() {
		return 0, nil
	}
	defer m.mu.Unlock()
	if p := m.first; p != nil {
		m.first = nil
		return frame(buf, p), nil
	}
	select {
	case p := <-m.out:
		return frame(buf, p), nil
	case <-m.closed:
		return 0, os.ErrClosed
	default:
		return 0, nil
	}
}

// Write takes super-packets apart, as what is behind a device does at last.
func (m *memTUN) Write(packet []byte) error {
	packet = append(make([]byte, 0, len(packet)+64), packet...)
	var s segment.Splitter
	if err := s.Begin(segment.ParseHeader(packet), packet[segment.HeaderSize:]); err != nil {
		return err
	}
	for p := s.Next(); p != nil; p = s.Next() {
		if m.echoes.Load() {
			m.answers <- slices.Concat(p[:12], p[16:20], p[12:16], p[20:])
		}
		select {
		case m.in <- append([]byte(nil), p...):
		case <-m.closed:
			return os.ErrClosed
		}
	}
	return nil
}

func (m *memTUN) Name() string    { return "mem" }
func (m *memTUN) Queues() []Queue { return []Queue{m} }

// recorder is a Handler that keeps what it gets.
type recorder struct {
	mu        sync.Mutex
	datagrams []recorded
	relayed   []recorded
	active    map[weft.NodeID]int
}

type recorded struct {
	link  weft.LinkID
	from  netip.AddrPort
	class wire.Class
	via   weft.Via
	src   weft.NodeID
	b     string
}

func (r *recorder) HandleDatagram(link weft.LinkID, from netip.AddrPort, class wire.Class, b []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.datagrams = append(r.datagrams, recorded{link: link, from: from, class: class, b: string(b)})
}

func (r *recorder) Silent(id weft.NodeID, via weft.Via, reason string) {}

func (r *recorder) HandleRelayed(via weft.Via, src weft.NodeID, b []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.relayed = append(r.relayed, recorded{via: via, src: src, b: string(b)})
}

func (r *recorder) Active(id weft.NodeID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.active == nil {
		r.active = make(map[weft.NodeID]int)
	}
	r.active[id]++
}

func (r *recorder) take() (datagrams, relayed []recorded) {
	r.mu.Lock()
	defer r.mu.Unlock()
	datagrams, relayed = r.datagrams, r.relayed
	r.datagrams, r.relayed = nil, nil
	return datagrams, relayed
}

func (r *recorder) activeCount(id weft.NodeID) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.active[id]
}

// node is an engine with all that a test looks at.
type node struct {
	*Engine
	id   weft.NodeID
	key  key.NodePrivate
	tun  *memTUN
	seen *recorder
}

func addrOf(id weft.NodeID) netip.Addr { return netip.AddrFrom4([4]byte{100, 64, 0, byte(id)}) }

func (n *node) peer() Peer {
	return Peer{ID: n.id, Key: n.key.Public(), Allowed: []netip.Prefix{netip.PrefixFrom(addrOf(n.id), 32)}}
}

func (n *node) addr() netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), n.Port())
}

// still makes a node whose engine is not up.
func still(t testing.TB, id weft.NodeID) *node {
	t.Helper()
	n := &node{id: id, key: key.NewPrivate[key.Node](), tun: newMemTUN(), seen: &recorder{}}
	e, err := New(Config{Key: n.key, Self: id, Device: n.tun, Handler: n.seen, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	n.Engine = e
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	return n
}

func start(t testing.TB, id weft.NodeID) *node {
	t.Helper()
	n := still(t, id)
	if err := n.Up(); err != nil {
		t.Fatal(err)
	}
	return n
}

// pair makes nodes 1 and 2 that know each other and have no routes.
func pair(t testing.TB) (a, b *node) {
	t.Helper()
	a, b = start(t, 1), start(t, 2)
	mustSetPeers(t, a, b.peer())
	mustSetPeers(t, b, a.peer())
	return a, b
}

func mustSetPeers(t testing.TB, n *node, peers ...Peer) {
	t.Helper()
	if err := n.SetPeers(peers); err != nil {
		t.Fatal(err)
	}
}

// packet is an IPv4 packet of protocol 253 (for experiments, RFC 3692) that carries a number.
func packet(src, dst netip.Addr, seq uint32, size int) []byte {
	p := make([]byte, max(size, 24))
	p[0] = 0x45
	binary.BigEndian.PutUint16(p[2:], uint16(len(p)))
	p[8], p[9] = 64, 253
	copy(p[12:], src.AsSlice())
	copy(p[16:], dst.AsSlice())
	binary.BigEndian.PutUint32(p[20:], seq)
	return p
}

// marked has a packet say that it can be marked instead of dropped (ECT(0), RFC 3168), as it is where the processor is short.
func marked(p []byte) []byte {
	p[1] = 2
	return p
}

// exchange sends a packet from a to b and waits for it.
func exchange(t testing.TB, a, b *node, seq uint32) {
	t.Helper()
	want := packet(addrOf(a.id), addrOf(b.id), seq, 200)
	a.tun.out <- want
	select {
	case got := <-b.tun.in:
		if string(got) != string(want) {
			t.Fatalf("packet %d from %d to %d: got %x, want %x", seq, a.id, b.id, got, want)
		}
	case <-time.After(patience):
		t.Fatalf("packet %d from %d to %d did not arrive; drops: %+v, %+v", seq, a.id, b.id, a.Drops(), b.Drops())
	}
}

// fakeRelay forwards data frames between the nodes it was told of, as a relay does.
type fakeRelay struct {
	c     *net.UDPConn
	nodes map[weft.NodeID]netip.AddrPort
	names map[netip.AddrPort]weft.NodeID
}

func newFakeRelay(t testing.TB, nodes ...*node) *fakeRelay {
	t.Helper()
	c, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	c.SetReadBuffer(4 << 20)
	r := &fakeRelay{c: c, nodes: make(map[weft.NodeID]netip.AddrPort), names: make(map[netip.AddrPort]weft.NodeID)}
	for _, n := range nodes {
		r.nodes[n.id] = n.addr()
		r.names[n.addr()] = n.id
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for b := make([]byte, 1<<16); ; {
			n, from, err := c.ReadFromUDPAddrPort(b)
			if err != nil {
				return
			}
			to, _, err := wire.ParseData(b[:n])
			src := r.names[unmap(from)]
			if err != nil || src == 0 || !r.nodes[to].IsValid() {
				continue
			}
			wire.SetDataID(b[:n], src)
			c.WriteToUDPAddrPort(b[:n], r.nodes[to])
		}
	}()
	t.Cleanup(func() { c.Close(); <-done })
	return r
}

func (r *fakeRelay) addr() netip.AddrPort { return r.c.LocalAddr().(*net.UDPAddr).AddrPort() }

// fakeStream is the stream of src to a relay that holds the streams of the others, too.
type fakeStream struct {
	relay weft.RelayID
	src   weft.NodeID
	nodes map[weft.NodeID]*node
}

func (s *fakeStream) SendTo(id weft.NodeID, datagrams [][]byte) error {
	if n := s.nodes[id]; n != nil {
		n.DeliverStream(s.relay, s.src, datagrams)
	}
	return nil
}

// The ways of the tests: relay 7 is spoken to over UDP, relay 8 over a stream.
var (
	viaUDP    = weft.Via{Method: weft.RelayUDP, Relay: 7}
	viaStream = weft.Via{Method: weft.RelayStream, Relay: 8}
)

// connect gives both nodes all three ways to each other, without choosing one.
func connect(t testing.TB, a, b *node) {
	t.Helper()
	relay := newFakeRelay(t, a, b)
	nodes := map[weft.NodeID]*node{a.id: a, b.id: b}
	for _, n := range nodes {
		n.SetRelay(viaUDP.Relay, relay.addr(), nil)
		n.SetRelay(viaStream.Relay, netip.AddrPort{}, &fakeStream{viaStream.Relay, n.id, nodes})
	}
	a.Learn(b.id, b.addr())
	b.Learn(a.id, a.addr())
}

func counters(n *node, id weft.NodeID, via weft.Via) PathCounters {
	for _, c := range n.Counters(nil, id) {
		if c.Via == via {
			return c
		}
	}
	return PathCounters{Via: via}
}

// receives has what came to the first socket worked on.
func (e *Engine) receives(reads []host.UDPRead) {
	o := e.opener()
	o.begin()
	o.messages(inbox{some: true}, reads)
	o.end()
	e.putOpener(o)
}
