package engine

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net/netip"
	"os"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.zx2c4.com/wireguard/conn"
	"golang.zx2c4.com/wireguard/device"

	"weft"
	"weft/key"
	"weft/wire"
)

// sink is a conn.Bind that keeps what is sent, joined as upstream does where offload works: by appending
// equal packets to the first, as far as its capacity goes.
type sink struct {
	conn.Bind
	discard bool
	err     error
	sent    []string // one per datagram
	buffers int      // how many buffers they were joined into
	to      netip.AddrPort
}

func (s *sink) Send(bufs [][]byte, ep conn.Endpoint) error {
	if s.err != nil || s.discard {
		return s.err
	}
	s.to = ep.(*conn.StdNetEndpoint).AddrPort
	var base []byte
	var size int
	flush := func() {
		for len(base) > 0 {
			n := min(size, len(base))
			s.sent = append(s.sent, string(base[:n]))
			base = base[n:]
		}
	}
	for _, b := range bufs {
		if len(base) > 0 && len(b) == size && cap(base)-len(base) >= len(b) && len(base)+len(b) <= maxDatagram {
			base = append(base, b...)
			continue
		}
		flush()
		s.buffers++
		base, size = b, len(b)
	}
	flush()
	return nil
}

// quietNode is an engine with one peer, 2, and a relay, 7, whose sends go to a sink.
func quietNode(t testing.TB) (*node, *peer, *sink) {
	t.Helper()
	s := &sink{Bind: conn.NewStdNetBind()}
	n := stillOn(t, 1, s)
	mustSetPeers(t, n, Peer{ID: 2, Key: key.NewPrivate[key.Node]().Public()})
	n.SetRelay(7, netip.MustParseAddrPort("192.0.2.7:3478"), nil)
	return n, n.Engine.peer(2), s
}

func transport(size int, fill byte) []byte {
	b := bytes.Repeat([]byte{fill}, size)
	copy(b, []byte{4, 0, 0, 0})
	return b
}

func TestFramesForARelayLieWhereSegmentationOffloadWantsThem(t *testing.T) {
	n, p, s := quietNode(t)
	n.SetRoute(2, viaUDP)
	var bufs [][]byte
	var want []string
	sizes := []int{1440, 1440, 1440, 600, 1440, 1440, 32, 32, 1000}
	for i, size := range sizes {
		b := transport(size, byte(i))
		bufs = append(bufs, b)
		want = append(want, string(append(wire.AppendData(nil, 2), b...)))
	}
	if err := n.bind.Send(bufs, p); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, s.sent); diff != "" {
		t.Error(diff)
	}
	if s.buffers != 5 {
		t.Errorf("upstream could join %d packets into %d buffers only", len(sizes), s.buffers)
	}
	if s.to.String() != "192.0.2.7:3478" {
		t.Errorf("sent to %v", s.to)
	}
}

func TestABatchOfTheLongestPacketsIsSentWhole(t *testing.T) {
	n, p, s := quietNode(t)
	n.SetRoute(2, viaUDP)
	var bufs [][]byte
	for i := range 9 {
		bufs = append(bufs, transport(60000+i, byte(i)))
	}
	bufs = append(bufs, transport(maxDatagram, 1)) // no room for the prefix
	n.bind.Send(bufs, p)
	if len(s.sent) != 9 {
		t.Fatalf("%d of 9 were sent", len(s.sent))
	}
	for i, frame := range s.sent {
		if frame[wire.DataPrefix:] != string(bufs[i]) {
			t.Errorf("packet %d was changed", i)
		}
	}
	if d := n.Drops(); d.SendErrors != 1 {
		t.Errorf("drops %+v", d)
	}
}

func TestAFailingSendIsCountedAndNotReported(t *testing.T) {
	n, p, s := quietNode(t)
	for _, s.err = range []error{syscall.EPERM, syscall.ENETUNREACH, syscall.ENOBUFS} {
		for _, via := range []weft.Via{viaUDP, weft.DirectVia(0, netip.MustParseAddrPort("192.0.2.2:2"))} {
			n.SetRoute(2, via)
			before := n.Drops().SendErrors
			if err := n.bind.Send([][]byte{transport(100, 1), transport(100, 2)}, p); err != nil {
				t.Errorf("%v: wireguard-go is told %v", via, err)
			}
			if got := n.Drops().SendErrors - before; got != 2 {
				t.Errorf("%v: %d counted", via, got)
			}
			if c := counters(n, 2, via); c.TxPackets != 0 || c.TxBytes != 0 {
				t.Errorf("%v: counted as sent: %+v", via, c)
			}
		}
	}
	s.err = conn.ErrUDPGSODisabled{} // sent after all, one by one
	before := n.Drops().SendErrors
	n.bind.Send([][]byte{transport(100, 1)}, p)
	if n.Drops().SendErrors != before {
		t.Error("what was sent without offload is counted as failed")
	}
}

func TestHandshakesBeginAndKeepalivesDoNotMakeActive(t *testing.T) {
	n, p, _ := quietNode(t)
	n.SetRoute(2, viaUDP)
	n.bind.Send([][]byte{transport(device.MessageKeepaliveSize, 0)}, p)
	response := make([]byte, device.MessageResponseSize)
	response[0] = device.MessageResponseType
	n.bind.Send([][]byte{response}, p)
	if got := n.seen.activeCount(2); got != 0 {
		t.Fatalf("a keepalive or response made the peer active, %d times", got)
	}
	initiation := make([]byte, device.MessageInitiationSize)
	initiation[0] = device.MessageInitiationType
	n.bind.Send([][]byte{initiation}, p)
	if got := n.seen.activeCount(2); got != 1 {
		t.Fatalf("a handshake that was begun made the peer active %d times", got)
	}
}

// narrow is a path that is too narrow for segmentation offload.
type narrow struct {
	conn.Bind
	err  error
	sent []string
}

func (n *narrow) Send(bufs [][]byte, _ conn.Endpoint) error {
	if len(bufs) > 1 {
		return n.err
	}
	n.sent = append(n.sent, string(bufs[0]))
	return nil
}

func TestABatchThatIsTooLongForThePathGoesOneByOne(t *testing.T) {
	for _, err := range []error{syscall.EMSGSIZE, syscall.EINVAL} {
		s := &narrow{Bind: conn.NewStdNetBind(), err: os.NewSyscallError("sendmmsg", err)}
		n := stillOn(t, 1, s)
		mustSetPeers(t, n, Peer{ID: 2, Key: key.NewPrivate[key.Node]().Public()})
		n.SetRelay(7, netip.MustParseAddrPort("192.0.2.7:3478"), nil)
		n.SetRoute(2, viaUDP)
		bufs := [][]byte{transport(1440, 1), transport(1440, 2), transport(700, 3)}
		n.bind.Send(bufs, n.Engine.peer(2))
		if len(s.sent) != 3 {
			t.Fatalf("%v: %d packets of 3 were sent", err, len(s.sent))
		}
		for i := range bufs {
			if s.sent[i][wire.DataPrefix:] != string(bufs[i]) {
				t.Errorf("%v: packet %d was changed", err, i)
			}
		}
		if c := counters(n, 2, viaUDP); c.TxPackets != 3 || n.Drops() != (Drops{}) {
			t.Errorf("%v: %+v, %+v", err, c, n.Drops())
		}
	}
}

// old is a kernel without IPv6, as upstream sees it: the port of the one socket is forgotten.
type old struct {
	conn.Bind
	opened []uint16
	busy   int // how many times the port is taken
}

func (o *old) Open(port uint16) ([]conn.ReceiveFunc, uint16, error) {
	o.opened = append(o.opened, port)
	if port != 0 && o.busy > 0 {
		o.busy--
		return nil, 0, syscall.EADDRINUSE
	}
	return nil, 0, nil
}

func (o *old) Close() error { return nil }

func TestThePortIsKnownWhereThereIsNoIPv6(t *testing.T) {
	o := &old{Bind: conn.NewStdNetBind(), busy: 1}
	n := stillOn(t, 1, o)
	if len(o.opened) != 4 || o.opened[0] != 0 || o.opened[2] != 0 || n.Port() == 0 || n.Port() != o.opened[3] {
		t.Errorf("port %d after opening %v", n.Port(), o.opened)
	}
	b := newBind(n.Engine, &old{})
	if err := b.listen(4242); err != nil || b.port != 4242 {
		t.Errorf("a port that was asked for: %d, %v", b.port, err)
	}
	if err := newBind(n.Engine, &old{busy: 1}).listen(4242); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("a port that is taken: %v", err)
	}
}

// arrive puts datagrams through the sieve as if they had come from an address in one batch.
func arrive(n *node, from netip.AddrPort, datagrams ...[]byte) (packets [][]byte, eps []conn.Endpoint) {
	bufs := make([][]byte, len(datagrams))
	sizes := make([]int, len(datagrams))
	all := make([]conn.Endpoint, len(datagrams))
	for i, d := range datagrams {
		bufs[i] = append(make([]byte, 0, len(d)+1), d...)
		bufs[i] = bufs[i][:cap(bufs[i])]
		sizes[i] = len(d)
		all[i] = &conn.StdNetEndpoint{AddrPort: from}
	}
	n.bind.sieve(0, bufs, sizes, all)
	for i := range bufs {
		if sizes[i] > 0 {
			packets = append(packets, bufs[i][:sizes[i]])
			eps = append(eps, all[i])
		}
	}
	return packets, eps
}

func TestABatchOfSeveralSourcesIsCountedToEach(t *testing.T) {
	n, p, s := quietNode(t)
	mustSetPeers(t, n, Peer{ID: 2, Key: p.key}, Peer{ID: 3, Key: key.NewPrivate[key.Node]().Public()})
	learned, relay := netip.MustParseAddrPort("192.0.2.3:3"), netip.MustParseAddrPort("192.0.2.7:3478")
	n.Learn(3, learned)

	data := func(id weft.NodeID, b []byte) []byte { return append(wire.AppendData(nil, id), b...) }
	packets, eps := arrive(n, relay,
		data(2, transport(100, 1)), data(2, transport(200, 2)), data(3, transport(300, 3)), data(2, transport(400, 4)),
		data(4, transport(500, 5)), transport(600, 6))
	if len(packets) != 5 {
		t.Fatalf("%d packets for the device, want 5", len(packets))
	}
	for i, size := range []int{100, 200, 300, 400, 600} {
		if len(packets[i]) != size || packets[i][0] != 4 || packets[i][size-1] != []byte{1, 2, 3, 4, 6}[i] {
			t.Errorf("packet %d: %x", i, packets[i])
		}
	}
	three := n.Engine.peer(3)
	for i, want := range []conn.Endpoint{p, p, three, p} {
		if eps[i] != want {
			t.Errorf("packet %d is taken for %v's", i, eps[i].DstToString())
		}
	}
	if eps[4].DstToString() != relay.String() {
		t.Errorf("a packet that the relay itself sent is taken for %v's", eps[4].DstToString())
	}
	arrive(n, learned, transport(32, 0), transport(64, 0))
	arrive(n, netip.AddrPortFrom(netip.AddrFrom16(learned.Addr().As16()), 3), transport(64, 0)) // IPv4-mapped

	type row struct {
		id  weft.NodeID
		via weft.Via
		n   uint64
		b   uint64
	}
	for _, want := range []row{{2, viaUDP, 3, 700}, {3, viaUDP, 1, 300}, {3, weft.DirectVia(0, learned), 3, 160}} {
		c := counters(n, want.id, want.via)
		if diff := cmp.Diff(PathCounters{Via: want.via, RxPackets: want.n, RxBytes: want.b}, c, cmp.AllowUnexported(netip.AddrPort{}, netip.Addr{}), cmp.Comparer(func(a, b weft.Via) bool { return a == b })); diff != "" {
			t.Errorf("peer %d: %s", want.id, diff)
		}
	}
	n.Forget(learned)
	if _, eps := arrive(n, learned, transport(64, 0)); eps[0] == conn.Endpoint(three) {
		t.Error("an address that was forgotten is still somebody's")
	}
	if len(s.sent) != 0 {
		t.Error("receiving has sent something")
	}
}

func TestThePeersCookieIsGoodOnEveryPath(t *testing.T) {
	n, p, _ := quietNode(t)
	before := p.DstToBytes()
	n.SetRoute(2, viaUDP)
	n.SetRoute(2, weft.DirectVia(0, netip.MustParseAddrPort("192.0.2.2:2")))
	if !bytes.Equal(before, p.DstToBytes()) {
		t.Error("the bytes that cookies are bound to follow the route")
	}
	other := &peer{id: 3}
	if bytes.Equal(before, other.DstToBytes()) || p.DstIP() == other.DstIP() {
		t.Error("two peers share cookies or the limit of handshakes")
	}
}

func TestViasOfAPeerAreBounded(t *testing.T) {
	n, p, _ := quietNode(t)
	route := netip.MustParseAddrPort("192.0.2.1:1")
	n.SetRoute(2, weft.DirectVia(0, route))
	for i := range uint16(3 * maxWays) {
		addr := netip.AddrPortFrom(netip.AddrFrom4([4]byte{198, 51, 100, 1}), 1000+i)
		n.Learn(2, addr)
		if i%2 == 0 {
			n.Forget(addr)
		}
	}
	if len(p.ways) != maxWays {
		t.Errorf("%d vias are kept", len(p.ways))
	}
	if len(n.sources) > maxWays {
		t.Errorf("%d addresses are learned", len(n.sources))
	}
	for addr, s := range n.sources {
		if s.peer.find(weft.DirectVia(0, addr)) != s.way {
			t.Errorf("%v is counted where nobody sees it", addr)
		}
	}
	if p.find(weft.DirectVia(0, route)) != p.route.Load() {
		t.Error("the route was forgotten")
	}
}

func TestHotPathsAllocateNothing(t *testing.T) {
	if raceDetector {
		t.Skip("the race detector makes pools allocate")
	}
	n, p, s := quietNode(t)
	s.discard = true
	bufs := make([][]byte, 64)
	for i := range bufs {
		bufs[i] = transport(1440, byte(i))
	}
	direct := netip.MustParseAddrPort("192.0.2.2:2")
	n.Learn(2, direct)
	n.SetRelay(8, netip.AddrPort{}, nowhere{})
	for _, via := range []weft.Via{weft.DirectVia(0, direct), viaUDP, viaStream} {
		n.SetRoute(2, via)
		if a := testing.AllocsPerRun(100, func() { n.bind.Send(bufs, p) }); a != 0 {
			t.Errorf("sending a batch by %v allocates %v times", via, a)
		}
		if a := testing.AllocsPerRun(100, func() { n.Engine.Send(2, via, bufs[0]) }); a != 0 {
			t.Errorf("sending a frame by %v allocates %v times", via, a)
		}
	}
	in := make([][]byte, 64)
	sizes := make([]int, 64)
	eps := make([]conn.Endpoint, 64)
	for name, from := range map[string]netip.AddrPort{"direct": direct, "relayed": netip.MustParseAddrPort("192.0.2.7:3478")} {
		ep := &conn.StdNetEndpoint{AddrPort: from}
		for i := range in {
			in[i] = make([]byte, 2048)
		}
		a := testing.AllocsPerRun(100, func() {
			for i := range in {
				sizes[i], eps[i] = 1448, ep
				wire.AppendData(in[i][:0], 2)
				binary.LittleEndian.PutUint32(in[i][wire.DataPrefix:], device.MessageTransportType)
				if name == "direct" {
					binary.LittleEndian.PutUint32(in[i], device.MessageTransportType)
				}
			}
			n.bind.sieve(0, in, sizes, eps)
		})
		if a != 0 || eps[0] != conn.Endpoint(p) {
			t.Errorf("receiving a %s batch allocates %v times, for %v", name, a, eps[0].DstToString())
		}
	}
	dst := make([]PathCounters, 0, maxWays)
	if a := testing.AllocsPerRun(100, func() { dst = n.Counters(dst[:0], 2) }); a != 0 || len(dst) == 0 {
		t.Errorf("reading %d counters allocates %v times", len(dst), a)
	}
}

type nowhere struct{}

func (nowhere) SendTo(weft.NodeID, [][]byte) error { return nil }

func FuzzWhatComesToTheSocket(f *testing.F) {
	stun := append([]byte{0, 1, 0, 0, 0x21, 0x12, 0xA4, 0x42}, make([]byte, 12)...)
	initiation := append([]byte{1, 0, 0, 0}, make([]byte, device.MessageInitiationSize-4)...)
	peerFrame := append([]byte{wire.Magic, wire.Version, byte(wire.KindPeer), 0}, make([]byte, 40)...)
	for _, b := range [][]byte{
		nil, {4}, transport(32, 0), transport(100, 1), stun, initiation, peerFrame,
		append(wire.AppendData(nil, 2), transport(100, 1)...),
		append(wire.AppendData(nil, 2), initiation...),
		append(wire.AppendData(nil, 2), peerFrame...),
		append(wire.AppendData(nil, 2), append(wire.AppendData(nil, 2), transport(32, 0)...)...),
		append(wire.AppendData(nil, 9), transport(100, 1)...),
		wire.AppendData(nil, 2), {wire.Magic}, {wire.Magic, 2, 2, 0, 0, 0, 0, 2, 4, 0, 0, 0},
	} {
		f.Add(b, uint8(0))
		f.Add(b, uint8(1))
		f.Add(b, uint8(2))
	}
	n, p, _ := quietNode(f)
	addrs := []netip.AddrPort{
		netip.MustParseAddrPort("192.0.2.7:3478"), // the relay's
		netip.MustParseAddrPort("192.0.2.2:2"),    // the peer's
		netip.MustParseAddrPort("[2001:db8::1]:1"),
	}
	n.Learn(2, addrs[1])
	f.Fuzz(func(t *testing.T, b []byte, from uint8) {
		addr := addrs[int(from)%len(addrs)]
		packets, eps := arrive(n, addr, b, transport(64, 9), b)
		datagrams, relayed := n.seen.take()
		inside := 0
		for i, packet := range packets {
			if wire.Classify(packet) != wire.ClassWireGuard {
				t.Fatalf("the device gets %x", packet)
			}
			if eps[i] == conn.Endpoint(p) && addr == addrs[2] {
				t.Fatal("a stranger's packet is taken for the peer's")
			}
			if len(packet) == 64 && packet[63] == 9 {
				inside++
			}
		}
		if inside == 0 {
			t.Fatal("the packet between was lost")
		}
		if got := len(packets) + len(datagrams) + len(relayed); got > 3 {
			t.Fatalf("three datagrams became %d", got)
		}
		if len(relayed) > 0 && addr != addrs[0] {
			t.Fatal("relayed by a stranger")
		}
		n.DeliverStream(8, 2, [][]byte{b})
		for len(n.bind.inbox) > 0 {
			if q := <-n.bind.inbox; wire.Classify(q.buf[:q.size]) != wire.ClassWireGuard {
				t.Fatalf("the device gets %x by stream", q.buf[:q.size])
			}
		}
		n.seen.take()
	})
}

func BenchmarkSendThroughUDPRelay(b *testing.B) {
	n, p, s := quietNode(b)
	s.discard = true
	n.SetRoute(2, viaUDP)
	bufs := make([][]byte, 64)
	for i := range bufs {
		bufs[i] = transport(1440, byte(i))
	}
	b.SetBytes(64 * 1440)
	for b.Loop() {
		n.bind.Send(bufs, p)
	}
}
