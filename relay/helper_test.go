package relay

import (
	"context"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"testing"
	"time"

	"weft"
	"weft/host"
	"weft/key"
	"weft/wire"
)

// A world is a relay on loopback and the coordinator's signing key.
type world struct {
	t       testing.TB
	relay   *Server
	desc    weft.Relay
	signing key.SigningPrivate
	key     key.RelayPrivate
	udp4    netip.AddrPort
	udp6    netip.AddrPort // zero where the machine has no IPv6
	twin4   netip.AddrPort // the alternate port
	http    http.Handler   // what the HTTP server serves; the relay if nil
}

var discard = slog.New(slog.DiscardHandler)

func newRelay(t testing.TB, change func(*Config)) *world {
	t.Helper()
	w := &world{t: t, signing: key.NewSigning(), key: key.NewPrivate[key.Relay]()}
	c := Config{Key: w.key, Issuer: w.signing.Public(), Logger: discard}
	c.Limits.QueueAge = time.Hour // a machine that is busy with other tests makes nothing old
	if change != nil {
		change(&c)
	}
	var err error
	if w.relay, err = New(c); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.relay.Close() })
	w.desc = weft.Relay{ID: 1, Name: "r1", Key: w.key.Public()}
	return w
}

// listenUDP opens a loopback socket of a family, or returns nil where there is none.
func listenUDP(t testing.TB, network, addr string) *net.UDPConn {
	t.Helper()
	c, err := net.ListenPacket(network, addr)
	if err != nil {
		return nil
	}
	t.Cleanup(func() { c.Close() })
	return c.(*net.UDPConn)
}

// serveUDP starts the UDP side on both families, the one of IPv4 with an alternate port.
func (w *world) serveUDP(respond Respond) *world {
	w.t.Helper()
	mains, err := host.UDPListen("udp4", "127.0.0.1:0", 2)
	if err != nil {
		w.t.Fatal(err)
	}
	for _, c := range mains {
		w.t.Cleanup(func() { c.Close() })
	}
	four := Port{Main: mains, Alternate: listenUDP(w.t, "udp4", "127.0.0.1:0")}
	ports := []Port{four}
	w.udp4, w.twin4 = four.Main[0].LocalAddr().(*net.UDPAddr).AddrPort(), four.Alternate.LocalAddr().(*net.UDPAddr).AddrPort()
	if c := listenUDP(w.t, "udp6", "[::1]:0"); c != nil {
		ports = append(ports, Port{Main: []*net.UDPConn{c}})
		w.udp6 = c.LocalAddr().(*net.UDPAddr).AddrPort()
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- w.relay.ServeUDP(ctx, ports, respond) }()
	w.t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			w.t.Errorf("ServeUDP: %v", err)
		}
	})
	w.desc.UDP = []netip.AddrPort{w.udp4}
	return w
}

// serveHTTP starts the stream side.
func (w *world) serveHTTP() *world {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		w.t.Fatal(err)
	}
	h := w.http
	if h == nil {
		h = w.relay
	}
	s := &http.Server{Handler: h, ErrorLog: log.New(io.Discard, "", 0)}
	go s.Serve(l)
	w.t.Cleanup(func() { s.Close() })
	w.desc.URL = "http://" + l.Addr().String()
	return w
}

var testNetwork = [8]byte{'n', 'e', 't'}

// member is a node and its ticket.
type member struct {
	w      *world
	id     weft.NodeID
	key    key.NodePrivate
	ticket []byte
}

func (w *world) member(id weft.NodeID) *member {
	m := &member{w: w, id: id, key: key.NewPrivate[key.Node]()}
	m.ticket = m.signed(func(*wire.Ticket) {})
	return m
}

// signed makes another ticket for the member.
func (m *member) signed(change func(*wire.Ticket)) []byte {
	t := wire.Ticket{Node: m.id, Network: testNetwork, Key: m.key.Public(), NotAfter: m.w.relay.clock().Add(time.Hour)}
	change(&t)
	return wire.SignTicket(nil, t, m.w.signing)
}

// udpNode is a member's UDP socket.
type udpNode struct {
	*member
	conn  *net.UDPConn
	relay netip.AddrPort
}

func (m *member) udp() *udpNode { return m.udpVia("udp4", "127.0.0.1:0", m.w.udp4) }

func (m *member) udpVia(network, addr string, relay netip.AddrPort) *udpNode {
	m.w.t.Helper()
	c := listenUDP(m.w.t, network, addr)
	if c == nil {
		m.w.t.Skipf("this machine has no %s", network)
	}
	c.SetReadBuffer(4 << 20)
	return &udpNode{member: m, conn: c, relay: relay}
}

func (n *udpNode) addr() netip.AddrPort { return n.conn.LocalAddr().(*net.UDPAddr).AddrPort() }

// bind binds the socket as a node does, and fails the test if that does not succeed.
func (n *udpNode) bind() *udpNode {
	n.w.t.Helper()
	if why, ok := n.tryBind(2 * time.Second); !ok || why != wire.RefusedNot {
		n.w.t.Fatalf("node %d is not bound: %v", n.id, why)
	}
	return n
}

func (n *udpNode) tryBind(d time.Duration) (why wire.Refusal, ok bool) {
	n.w.t.Helper()
	b, err := NewUDPBinding(UDPBindingConfig{NodeKey: n.key, Relay: n.w.desc, Ticket: n.ticket})
	if err != nil {
		n.w.t.Fatal(err)
	}
	buf := make([]byte, 2048)
	for until := time.Now().Add(d); time.Now().Before(until); {
		frame, next := b.Poll(time.Now())
		if frame != nil {
			n.write(frame)
		}
		n.conn.SetReadDeadline(next)
		k, from, err := n.conn.ReadFromUDPAddrPort(buf)
		if err != nil || from != n.relay {
			continue
		}
		b.Handle(time.Now(), buf[:k])
		if b.Bound() {
			if b.Observed() != n.addr() {
				n.w.t.Errorf("the relay sees %s, not %s", b.Observed(), n.addr())
			}
			return wire.RefusedNot, true
		}
		if b.Refused() != wire.RefusedNot {
			return b.Refused(), false
		}
	}
	return wire.RefusedNot, false
}

func (n *udpNode) write(b []byte) {
	n.w.t.Helper()
	if _, err := n.conn.WriteToUDPAddrPort(b, n.relay); err != nil {
		n.w.t.Fatal(err)
	}
}

func (n *udpNode) send(to weft.NodeID, payload string) {
	n.w.t.Helper()
	n.write(append(wire.AppendData(nil, to), payload...))
}

// recv returns the next datagram, or false when none comes.
func (n *udpNode) recv(d time.Duration) (from weft.NodeID, payload string, ok bool) {
	n.w.t.Helper()
	buf := make([]byte, 1<<16)
	for n.conn.SetReadDeadline(time.Now().Add(d)); ; {
		k, at, err := n.conn.ReadFromUDPAddrPort(buf)
		if err != nil {
			return 0, "", false
		}
		if at != n.relay {
			n.w.t.Errorf("a datagram from %s, not the relay", at)
		}
		if id, b, err := wire.ParseData(buf[:k]); err == nil {
			return id, string(b), true
		}
	}
}

func (n *udpNode) want(from weft.NodeID, payload string) {
	n.w.t.Helper()
	if id, b, ok := n.recv(2 * time.Second); !ok || id != from || b != payload {
		n.w.t.Errorf("node %d: got %.40q from %d (%v), want %.40q from %d", n.id, b, id, ok, payload, from)
	}
}

// hears nothing, once what came before has surely been dealt with.
func (n *udpNode) wantNothing() {
	n.w.t.Helper()
	if id, b, ok := n.recv(30 * time.Millisecond); ok {
		n.w.t.Errorf("node %d: got %.40q from %d", n.id, b, id)
	}
}

// got is what a stream delivered.
type got struct {
	from    weft.NodeID
	payload string
}

// streamNode is a member's stream.
type streamNode struct {
	*member
	*Stream
	got chan got
}

func (m *member) stream() *streamNode {
	m.w.t.Helper()
	n, err := m.tryStream()
	if err != nil {
		m.w.t.Fatalf("node %d: %v", m.id, err)
	}
	return n
}

func (m *member) tryStream() (*streamNode, error) {
	n := &streamNode{member: m, got: make(chan got, 1<<16)}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	var err error
	n.Stream, err = DialStream(ctx, StreamConfig{
		Relay: m.w.desc, NodeKey: m.key, Ticket: func() []byte { return m.ticket }, Logger: discard,
		Deliver: func(src weft.NodeID, datagrams [][]byte) {
			for _, d := range datagrams {
				n.got <- got{src, string(d)}
			}
		},
	})
	if err == nil {
		m.w.t.Cleanup(func() { n.Close() })
		n.out.mu.Lock()
		n.out.age = time.Hour
		n.out.mu.Unlock()
	}
	return n, err
}

func (n *streamNode) send(to weft.NodeID, payloads ...string) {
	n.w.t.Helper()
	var b [][]byte
	for _, p := range payloads {
		b = append(b, []byte(p))
	}
	if err := n.SendTo(to, b); err != nil {
		n.w.t.Errorf("node %d: %v", n.id, err)
	}
}

func (n *streamNode) want(from weft.NodeID, payload string) {
	n.w.t.Helper()
	select {
	case g := <-n.got:
		if g.from != from || g.payload != payload {
			n.w.t.Errorf("node %d: got %.40q from %d, want %.40q from %d", n.id, g.payload, g.from, payload, from)
		}
	case <-time.After(2 * time.Second):
		n.w.t.Errorf("node %d: nothing, want %.40q from %d", n.id, payload, from)
	}
}

func (n *streamNode) wantNothing() {
	n.w.t.Helper()
	select {
	case g := <-n.got:
		n.w.t.Errorf("node %d: got %.40q from %d", n.id, g.payload, g.from)
	case <-time.After(30 * time.Millisecond):
	}
}

func (n *streamNode) wantEnd() {
	n.w.t.Helper()
	select {
	case <-n.Done():
	case <-time.After(3 * time.Second):
		n.w.t.Errorf("node %d's stream goes on", n.id)
	}
}

// eventually polls real IO.
func eventually(t testing.TB, what string, f func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(5 * time.Second); !f(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("not within 5 s: %s", what)
		}
	}
}
