package relay

import (
	"bytes"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"weft"
	"weft/host"
	"weft/key"
	"weft/stun"
	"weft/wire"
)

// asking runs a node's binding on its socket until a question is answered.
type asking struct {
	*udpNode
	b     *UDPBinding
	other func(b []byte, from netip.AddrPort) // what came and was not for the binding
}

func (n *udpNode) asking() *asking {
	n.w.t.Helper()
	b, err := NewUDPBinding(UDPBindingConfig{NodeKey: n.key, Relay: n.w.desc, Ticket: n.ticket})
	if err != nil {
		n.w.t.Fatal(err)
	}
	return &asking{udpNode: n, b: b}
}

// answers waits for n answers.
func (a *asking) answers(n int) (all []Answer) {
	a.w.t.Helper()
	buf := make([]byte, 2048)
	for until := time.Now().Add(10 * time.Second); len(all) < n; {
		if time.Now().After(until) {
			a.w.t.Fatalf("%d of %d answers: %+v", len(all), n, all)
		}
		frame, next := a.b.Poll(time.Now())
		if frame != nil {
			a.write(frame)
		}
		a.conn.SetReadDeadline(next)
		if k, from, err := a.conn.ReadFromUDPAddrPort(buf); err == nil && !a.b.Handle(time.Now(), buf[:k]) && a.other != nil {
			a.other(bytes.Clone(buf[:k]), from)
		}
		all = append(all, a.b.Answers()...)
	}
	return all
}

func (w *world) respond() Respond {
	return func(dst, req []byte, from, local netip.AddrPort) (stun.Reply, bool) {
		r := stun.Responder{Ports: [2]uint16{w.udp4.Port(), w.twin4.Port()}}
		return r.Respond(dst, req, from, local)
	}
}

func TestARelayTellsWhereItSeesANodeOfTheSameNetwork(t *testing.T) {
	w := newRelay(t, nil)
	w.serveUDP(w.respond()).serveHTTP()
	peer := w.member(2).udp().bind()
	w.member(3).stream()
	stranger := w.member(4)
	stranger.ticket = stranger.signed(func(t *wire.Ticket) { t.Network = [8]byte{'o', 't', 'h', 'e', 'r'} })
	outsider := stranger.udp().asking()
	outsider.b.Locate(time.Now(), 2)
	if got := outsider.answers(1)[0]; got.Addr.IsValid() || got.Outcome != Answered {
		t.Errorf("a node of another network is told %+v", got)
	}

	a := w.member(1).udp().asking()
	for id := weft.NodeID(1); id <= 4; id++ {
		a.b.Locate(time.Now(), id)
	}
	want := map[weft.NodeID]netip.AddrPort{1: a.addr(), 2: peer.addr(), 3: {}, 4: {}} // 3 by stream alone, 4 elsewhere
	for _, got := range a.answers(4) {
		if at, ok := want[got.Node]; !ok || got.Addr != at || got.Outcome != Answered {
			t.Errorf("%+v, want %v", got, at)
		}
		delete(want, got.Node)
	}
	if st := w.relay.Stats(); st.Locates != 5 {
		t.Errorf("%d Locates are counted", st.Locates)
	}
	// Where the peer is now, not where it was.
	moved := peer.member.udp().bind()
	a.b.Locate(time.Now(), 2)
	if got := a.answers(1); got[0].Addr != moved.addr() {
		t.Errorf("%+v, and the node is at %s", got, moved.addr())
	}
}

func TestAProbeComesFromThePortThatWasAskedForToTheNodesOwnAddress(t *testing.T) {
	w := newRelay(t, nil)
	w.serveUDP(w.respond())
	a := w.member(1).udp().asking()
	// Another socket of the same host, which has sent nothing.
	fresh := listenUDP(t, "udp4", "127.0.0.1:0")
	at := fresh.LocalAddr().(*net.UDPAddr).AddrPort()
	for i, alternate := range []bool{false, true} {
		tx := [12]byte{byte(i + 1), 11: 9}
		if !a.b.Probe(time.Now(), tx, at.Port(), alternate) {
			t.Fatal("too many wait")
		}
		if got := a.answers(1)[0]; got != (Answer{Outcome: Answered, Tx: tx, Addr: at}) {
			t.Errorf("%+v", got)
		}
		buf := make([]byte, 2048)
		fresh.SetReadDeadline(time.Now().Add(2 * time.Second))
		n, from, err := fresh.ReadFromUDPAddrPort(buf)
		want := w.udp4
		if alternate {
			want = w.twin4
		}
		m, errParse := stun.Parse(buf[:n])
		if err != nil || errParse != nil || from != want || m.Class != stun.ClassSuccess || [12]byte(buf[8:20]) != tx {
			t.Errorf("%x from %s, want it from %s: %v, %v", buf[:n], from, want, err, errParse)
		}
		if n > wire.ProbePacket {
			t.Errorf("the STUN message has %d bytes", n)
		}
	}
	if st := w.relay.Stats(); st.Probes != 2 {
		t.Errorf("%d Probes are counted", st.Probes)
	}
}

func TestARelayWithoutSuchAPortSaysThatItSentNothing(t *testing.T) {
	w := newRelay(t, nil)
	w.serveUDP(nil)
	a := w.member(1).udp().asking()
	a.b.Probe(time.Now(), [12]byte{1}, 4000, false)
	if got := a.answers(1)[0]; got.Outcome != Unable {
		t.Errorf("without STUN: %+v", got)
	}
	if w.udp6.IsValid() { // which has no alternate port here
		w := newRelay(t, nil)
		w.serveUDP(w.respond())
		b := w.member(1).udpVia("udp6", "[::1]:0", w.udp6).asking()
		b.b.Probe(time.Now(), [12]byte{2}, 4000, true)
		b.b.Probe(time.Now(), [12]byte{3}, 4000, false)
		for _, got := range b.answers(2) {
			if (got.Outcome == Answered) != (got.Tx[0] == 3) {
				t.Errorf("%+v", got)
			}
		}
	}
}

// quiz is a bound node at a loop that the test drives, in its own time.
type quiz struct {
	*world
	l     *loop
	box   key.Box
	node  *udpNode
	clock atomic.Int64
}

func newQuiz(t testing.TB) *quiz {
	q := &quiz{}
	q.world = newRelay(t, func(c *Config) { c.Now = func() time.Time { return time.Unix(1e9, q.clock.Load()) } })
	socket, err := host.NewUDPSocket(listenUDP(t, "udp4", "127.0.0.1:0"))
	if err != nil {
		t.Fatal(err)
	}
	q.udp4 = socket.Local()
	q.l = q.relay.newLoop(socket, q.respond())
	if q.l.twin, err = host.NewUDPSocket(listenUDP(t, "udp4", "127.0.0.1:0")); err != nil {
		t.Fatal(err)
	}
	q.twin4 = q.l.twin.Local()
	m := q.member(1)
	q.node = m.udp()
	q.box, _ = wire.RelayBox(m.key, q.desc.Key)
	bindAt := wire.AppendBind(nil, wire.Bind{Ticket: m.ticket, Cookie: q.relay.cookies.make(q.node.addr(), 0)}, q.box)
	q.relay.takeBind(nil, bind{frame: bindAt, from: q.node.addr(), socket: socket})
	if q.relay.Stats().UDP != 1 {
		t.Fatal("not bound")
	}
	return q
}

// comes has a datagram arrive at the relay.
func (q *quiz) comes(from netip.AddrPort, b []byte) {
	q.l.begin()
	b = bytes.Clone(b)
	q.l.take(&host.UDPRead{Data: b, Segment: len(b), From: from})
	q.l.flush()
}

// heard counts what a socket received.
func heard(t testing.TB, c *net.UDPConn) (n, size int) {
	t.Helper()
	buf := make([]byte, 2048)
	for {
		c.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
		k, err := c.Read(buf)
		if err != nil {
			return n, size
		}
		n++
		size += k
	}
}

func TestWhoRecordedAQuestionGetsNothingAndTheNodeNoMoreThanTheLimit(t *testing.T) {
	for _, c := range []struct {
		name  string
		frame func(q *quiz, port uint16) []byte
		every time.Duration
		burst int
		sent  int // datagrams for each that is taken
	}{
		{"Locate", func(q *quiz, _ uint16) []byte {
			return wire.AppendLocate(nil, wire.Locate{Nonce: [8]byte{1}, Node: 1}, q.box)
		}, locateEvery, locateBurst, 1},
		{"Probe", func(q *quiz, port uint16) []byte {
			return wire.AppendProbe(nil, wire.Probe{Nonce: [8]byte{1}, Port: port}, q.box)
		}, probeEvery, probeBurst, 2},
		{"Probe from the alternate port", func(q *quiz, port uint16) []byte {
			return wire.AppendProbe(nil, wire.Probe{Nonce: [8]byte{1}, Port: port, Alternate: true}, q.box)
		}, probeEvery, probeBurst, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			q := newQuiz(t)
			frame := c.frame(q, q.node.addr().Port())
			victim := listenUDP(t, "udp4", "127.0.0.1:0")
			elsewhere := listenUDP(t, "udp4", "127.0.0.9:0")

			// From an address that is not bound, whose frame it ever was: nothing.
			for range 10 {
				q.comes(victim.LocalAddr().(*net.UDPAddr).AddrPort(), frame)
				q.comes(elsewhere.LocalAddr().(*net.UDPAddr).AddrPort(), frame)
			}
			for _, conn := range []*net.UDPConn{victim, elsewhere, q.node.conn} {
				if n, _ := heard(t, conn); n != 0 {
					t.Errorf("%s is sent %d datagrams", conn.LocalAddr(), n)
				}
			}
			// From the bound one, as fast as can be: the burst, and no more bytes than came.
			for range 10 * c.burst {
				q.comes(q.node.addr(), frame)
			}
			if n, size := heard(t, q.node.conn); n != c.burst*c.sent || size > c.burst*len(frame) {
				t.Errorf("%d datagrams of %d bytes for %d questions of %d", n, size, c.burst, len(frame))
			}
			// And then the rate.
			for range 10 {
				q.clock.Add(int64(c.every))
				q.comes(q.node.addr(), frame)
				q.comes(q.node.addr(), frame)
			}
			if n, _ := heard(t, q.node.conn); n != 10*c.sent {
				t.Errorf("%d datagrams in ten intervals", n)
			}
			if st := q.relay.Stats(); st.Drops[DropLimited] != uint64(9*c.burst+10) || st.Drops[DropStranger] != 20 {
				t.Errorf("counted are %v", st.Drops)
			}
			// What does not open costs the node none of its questions.
			q.clock.Add(int64(c.every))
			bad := bytes.Clone(frame)
			bad[len(bad)-1] ^= 1
			for range 100 {
				q.comes(q.node.addr(), bad)
			}
			q.comes(q.node.addr(), frame)
			if n, _ := heard(t, q.node.conn); n != c.sent {
				t.Errorf("after frames that do not open, %d datagrams", n)
			}
		})
	}
}

func TestABindingThatEndedAsksNothing(t *testing.T) {
	q := newQuiz(t)
	q.clock.Store(int64(bindLifetime))
	q.comes(q.node.addr(), wire.AppendLocate(nil, wire.Locate{Node: 1}, q.box))
	q.comes(q.node.addr(), wire.AppendProbe(nil, wire.Probe{Port: q.node.addr().Port()}, q.box))
	if n, _ := heard(t, q.node.conn); n != 0 {
		t.Errorf("%d answers", n)
	}
}

func TestTheAlternatePortAnswersSTUNAndNothingElse(t *testing.T) {
	w := newRelay(t, nil)
	w.serveUDP(w.respond())
	a := w.member(1)
	n := a.udpVia("udp4", "127.0.0.1:0", w.twin4)
	if _, ok := n.tryBind(300 * time.Millisecond); ok {
		t.Error("bound at the alternate port")
	}
	// A request there is answered from there, and one to be answered from the other port from the other port.
	for _, c := range []struct{ to, want netip.AddrPort }{{w.twin4, w.twin4}, {w.udp4, w.twin4}, {w.twin4, w.udp4}} {
		req := append([]byte{0, 1, 0, 0, 0x21, 0x12, 0xA4, 0x42}, "twelve bytes"...)
		if c.to != c.want {
			req = append(req, 0, 3, 0, 4, 0, 0, 0, 2) // CHANGE-REQUEST, change port
			req[3] = 8
		}
		if _, err := n.conn.WriteToUDPAddrPort(req, c.to); err != nil {
			t.Fatal(err)
		}
		buf := make([]byte, 2048)
		n.conn.SetReadDeadline(time.Now().Add(2 * time.Second))
		k, from, err := n.conn.ReadFromUDPAddrPort(buf)
		if m, errParse := stun.Parse(buf[:k]); err != nil || errParse != nil || from != c.want || m.Class != stun.ClassSuccess {
			t.Errorf("asked %s: %x from %s, want it from %s (%v, %v)", c.to, buf[:k], from, c.want, err, errParse)
		}
	}
}

func TestQuestionsAreAnsweredWithoutAllocating(t *testing.T) {
	q := newQuiz(t)
	locate := wire.AppendLocate(nil, wire.Locate{Node: 1}, q.box)
	probe := wire.AppendProbe(nil, wire.Probe{Port: q.node.addr().Port()}, q.box)
	reads := []host.UDPRead{{Data: locate, Segment: len(locate), From: q.node.addr()}, {Data: probe, Segment: len(probe), From: q.node.addr()}}
	ask := func() {
		q.clock.Add(int64(probeEvery))
		q.relay.nodes.get(nodeName{testNetwork, 1}).udp.Load().ends.Store(int64(time.Hour))
		q.l.begin()
		for i := range reads {
			q.l.take(&reads[i])
		}
		q.l.flush()
	}
	ask()
	if n := testing.AllocsPerRun(200, ask); n != 0 {
		t.Errorf("%v allocations", n)
	}
	if st := q.relay.Stats(); st.Locates < 200 || st.Probes < 200 {
		t.Errorf("%d Locates, %d Probes", st.Locates, st.Probes)
	}
}
