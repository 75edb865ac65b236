package relay

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"weft"
	"weft/host"
	"weft/key"
	"weft/stun"
	"weft/wire"
)

func TestDatagramsGoBetweenBoundNodesOfBothFamilies(t *testing.T) {
	w := newRelay(t, nil).serveUDP(nil)
	a, b := w.member(1).udp().bind(), w.member(2).udp().bind()
	a.send(2, "hello")
	b.want(1, "hello")
	b.send(1, strings.Repeat("x", 1452))
	a.want(2, strings.Repeat("x", 1452))
	if w.udp6.IsValid() {
		c := w.member(3).udpVia("udp6", "[::1]:0", w.udp6).bind()
		c.send(1, "from IPv6")
		a.want(3, "from IPv6")
		a.send(3, "to IPv6")
		c.want(1, "to IPv6")
	}
	st := w.relay.Stats()
	if st.SentUDP.Datagrams < 2 || st.UDP < 2 || st.Nodes != st.UDP || st.Binds < 2 || st.Sockets == 0 {
		t.Errorf("stats are %+v", st)
	}
}

func TestRunsOfManyDatagramsArriveInOrderAtEachNode(t *testing.T) {
	w := newRelay(t, nil).serveUDP(nil)
	a, b, c := w.member(1).udp().bind(), w.member(2).udp().bind(), w.member(3).udp().bind()
	socket, err := host.NewUDPSocket(a.conn)
	if err != nil {
		t.Fatal(err)
	}
	var dest host.UDPDest
	socket.SetDest(&dest, w.udp4, netip.Addr{})
	out := host.NewUDPWriter()
	// One run of one sender, for two receivers in turns of five, the last datagram shorter.
	var run []byte
	var want [2][]string
	const size, count = 1000, 60
	for i := range count {
		payload := fmt.Sprintf("%04d", i) + strings.Repeat("y", size-wire.DataPrefix-4)
		if i == count-1 {
			payload = payload[:17]
		}
		to := i / 5 % 2
		want[to] = append(want[to], payload)
		run = append(wire.AppendData(run, weft.NodeID(2+to)), payload...)
	}
	out.Add(&dest, run, size)
	out.Flush()
	for i, n := range []*udpNode{b, c} {
		for _, p := range want[i] {
			n.want(1, p)
		}
		n.wantNothing()
	}
}

func TestSTUNAndRelayShareThePort(t *testing.T) {
	request := append([]byte{0, 1, 0, 0, 0x21, 0x12, 0xA4, 0x42}, "twelve bytes"...)
	var seen atomic.Value
	w := newRelay(t, nil).serveUDP(func(dst, req []byte, from, local netip.AddrPort) (stun.Reply, bool) {
		seen.Store([2]netip.AddrPort{from, local})
		return stun.Reply{Packet: append(append(dst, "answer to "...), req[8:]...), From: local, To: from}, bytes.Equal(req, request)
	})
	n := w.member(1).udp()
	n.write(request)
	b := make([]byte, 100)
	n.conn.SetReadDeadline(time.Now().Add(2 * time.Second))
	k, from, err := n.conn.ReadFromUDPAddrPort(b)
	if err != nil || string(b[:k]) != "answer to twelve bytes" || from != w.udp4 {
		t.Fatalf("%q from %s, %v", b[:k], from, err)
	}
	if got := seen.Load(); got != [2]netip.AddrPort{n.addr(), w.udp4} {
		t.Errorf("the responder heard of %v", got)
	}
	n.bind()
}

func TestAnAnswerLeavesFromTheAddressThatWasHit(t *testing.T) {
	w := newRelay(t, nil)
	conn := listenUDP(t, "udp4", "0.0.0.0:0")
	port := uint16(conn.LocalAddr().(*net.UDPAddr).Port)
	go w.relay.ServeUDP(t.Context(), []Port{{Main: []*net.UDPConn{conn}}}, nil)
	var nodes []*udpNode
	for i, ip := range []string{"127.0.0.5", "127.0.0.6"} { // which bind() and want() insist on
		at := netip.AddrPortFrom(netip.MustParseAddr(ip), port)
		nodes = append(nodes, w.member(weft.NodeID(i+1)).udpVia("udp4", "127.0.0.1:0", at).bind())
	}
	nodes[0].send(2, "hello")
	nodes[1].want(1, "hello")
	nodes[1].send(1, "hello too")
	nodes[0].want(2, "hello too")
}

// An open relay would forward for anybody.
func TestWhoIsNotBoundIsNotForwardedForAndNotTo(t *testing.T) {
	w := newRelay(t, nil).serveUDP(nil)
	a, stranger := w.member(1).udp().bind(), w.member(2).udp()
	stranger.send(1, "let me in")
	a.wantNothing()
	a.send(2, "anybody there?")
	stranger.wantNothing()
	eventually(t, "both are counted", func() bool {
		d := w.relay.Stats().Drops
		return d[DropStranger] == 1 && d[DropNoSuch] == 1
	})
}

func TestATicketThatIsNotGoodAdmitsNobody(t *testing.T) {
	w := newRelay(t, nil).serveUDP(nil)
	foreign := newRelay(t, nil)
	for _, c := range []struct {
		name   string
		ticket func(m *member) []byte
		want   wire.Refusal
	}{
		{"forged", func(m *member) []byte {
			b := bytes.Clone(m.ticket)
			b[7] ^= 2 // another NodeID
			return b
		}, wire.RefusedForged},
		{"of another server", func(m *member) []byte {
			other := *m
			other.w = foreign
			return other.signed(func(*wire.Ticket) {})
		}, wire.RefusedForged},
		{"expired", func(m *member) []byte {
			return m.signed(func(t *wire.Ticket) { t.NotAfter = time.Now().Add(-time.Minute) })
		}, wire.RefusedExpired},
		{"of another node", func(m *member) []byte { return m.w.member(9).ticket }, wire.RefusedForged},
		{"of no node", func(m *member) []byte { return m.signed(func(t *wire.Ticket) { t.Node = 0 }) }, wire.RefusedForged},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := w.member(1)
			m.ticket = c.ticket(m)
			n := m.udp()
			if why, ok := n.tryBind(5 * time.Second); ok || why != c.want {
				t.Errorf("bound: %v, refused: %v", ok, why)
			}
		})
	}
	if st := w.relay.Stats(); st.Nodes != 0 || st.UDP != 0 {
		t.Errorf("somebody is bound: %+v", st)
	}
}

func TestNetworksAreApart(t *testing.T) {
	w := newRelay(t, nil).serveUDP(nil).serveHTTP()
	a := w.member(1).udp().bind()
	other := w.member(2)
	other.ticket = other.signed(func(t *wire.Ticket) { t.Network = [8]byte{'o', 't', 'h', 'e', 'r'} })
	b := other.udp().bind()
	s := other.stream()
	a.send(2, "across")
	b.send(1, "across")
	s.send(1, "across")
	a.wantNothing()
	b.wantNothing()
	s.wantNothing()
	// And numbers are each network's own.
	twin := w.member(1)
	twin.ticket = twin.signed(func(t *wire.Ticket) { t.Network = [8]byte{'o', 't', 'h', 'e', 'r'} })
	c := twin.udp().bind()
	b.send(1, "to my own")
	c.want(2, "to my own")
	a.wantNothing()
}

func TestANodeRoamsAndWhatWasRecordedDoesNotBringItBack(t *testing.T) {
	w := newRelay(t, nil).serveUDP(nil)
	m, peer := w.member(1), w.member(2).udp().bind()
	home, away := m.udp(), m.udp()

	// Every Bind that the node sends at home is recorded.
	recorder, err := NewUDPBinding(UDPBindingConfig{NodeKey: m.key, Relay: w.desc, Ticket: m.ticket})
	if err != nil {
		t.Fatal(err)
	}
	var recorded []byte
	buf := make([]byte, 2048)
	for !recorder.Bound() {
		if frame, _ := recorder.Poll(time.Now()); frame != nil {
			recorded = frame
			home.write(frame)
		}
		home.conn.SetReadDeadline(time.Now().Add(2 * time.Second))
		k, _, err := home.conn.ReadFromUDPAddrPort(buf)
		if err != nil {
			t.Fatal(err)
		}
		recorder.Handle(time.Now(), buf[:k])
	}
	peer.send(1, "at home")
	home.want(2, "at home")

	eventually(t, "a later cookie", func() bool { return w.relay.now()/cookieTicks > 50 })
	away.bind()
	peer.send(1, "away")
	away.want(2, "away")
	home.wantNothing()
	home.send(2, "from where I was")
	peer.wantNothing()

	// A replay from the old address: its cookie is good, but older. From a third address: the cookie is not.
	third := m.udp()
	for _, n := range []*udpNode{home, third} {
		n.write(recorded)
		n.conn.SetReadDeadline(time.Now().Add(2 * time.Second))
		k, _, err := n.conn.ReadFromUDPAddrPort(buf)
		if err != nil {
			t.Fatal(err)
		}
		if kind, _ := wire.KindOf(buf[:k]); kind == wire.KindBound {
			t.Error("a recorded Bind binds")
		}
	}
	peer.send(1, "still away")
	away.want(2, "still away")
	home.wantNothing()
	third.wantNothing()

	// But the node itself comes home.
	home.bind()
	peer.send(1, "home again")
	home.want(2, "home again")
	away.wantNothing()
}

func TestARevokedNodeIsDroppedAtOnce(t *testing.T) {
	w := newRelay(t, nil).serveUDP(nil).serveHTTP()
	a, b := w.member(1).udp().bind(), w.member(2).udp().bind()
	s, other := w.member(3).stream(), w.member(4).stream()
	a.send(2, "before")
	b.want(1, "before")
	w.relay.SetRevoked([]weft.NodeID{2, 3})
	a.send(2, "after")
	b.wantNothing()
	b.send(1, "after")
	a.wantNothing()
	other.send(3, "after")
	s.wantEnd()
	if err := s.Err(); err == nil || !strings.Contains(err.Error(), "removed from the network") {
		t.Errorf("the stream's end says %v", err)
	}
	if why, ok := b.tryBind(time.Second); ok || why != wire.RefusedRevoked {
		t.Errorf("bound again: %v, %v", ok, why)
	}
	if _, err := s.tryStream(); err == nil || !strings.Contains(err.Error(), "removed from the network") || weft.CodeOf(err).Permanent() {
		t.Errorf("another stream: %v", err)
	}
	w.relay.SetRevoked(nil)
	b.bind()
}

func TestATicketsEndEndsTheBinding(t *testing.T) {
	var clock atomic.Int64
	w := newRelay(t, func(c *Config) {
		c.Now = func() time.Time { return time.Unix(1e9, clock.Load()) }
	}).serveUDP(nil)
	advance := func(d time.Duration) { clock.Add(int64(d)) }
	m := w.member(1)
	m.ticket = m.signed(func(t *wire.Ticket) { t.NotAfter = w.relay.clock().Add(30 * time.Second) })
	a, b := m.udp().bind(), w.member(2).udp().bind()
	advance(29 * time.Second)
	a.send(2, "in time")
	b.want(1, "in time")
	advance(2 * time.Second)
	a.send(2, "late")
	b.send(1, "late")
	a.wantNothing()
	b.wantNothing()
	if why, ok := a.tryBind(time.Second); ok || why != wire.RefusedExpired {
		t.Errorf("bound: %v, refused: %v", ok, why)
	}
	// A binding that is not renewed ends too, and is forgotten.
	advance(bindLifetime)
	a.ticket = a.signed(func(t *wire.Ticket) { t.NotAfter = w.relay.clock().Add(time.Hour) })
	a.bind()
	a.send(2, "who?")
	b.wantNothing()
	w.relay.sweep()
	if st := w.relay.Stats(); st.Nodes != 1 || st.UDP != 1 {
		t.Errorf("after the sweep: %+v", st)
	}
}

func TestARelayThatIsFullSaysSo(t *testing.T) {
	w := newRelay(t, func(c *Config) { c.Limits.Nodes = 1 }).serveUDP(nil)
	w.member(1).udp().bind()
	if why, ok := w.member(2).udp().tryBind(time.Second); ok || why != wire.RefusedFull {
		t.Errorf("bound: %v, refused: %v", ok, why)
	}
}

func TestTheLaterTicketDecidesWhichKeyANodeHas(t *testing.T) {
	w := newRelay(t, nil).serveUDP(nil)
	old := w.member(1)
	fresh := w.member(1)
	fresh.ticket = fresh.signed(func(t *wire.Ticket) { t.NotAfter = t.NotAfter.Add(time.Hour) })
	peer := w.member(2).udp().bind()
	a := old.udp().bind()
	b := fresh.udp().bind()
	peer.send(1, "to the new key")
	b.want(2, "to the new key")
	a.wantNothing()
	if why, ok := a.tryBind(500 * time.Millisecond); ok {
		t.Errorf("the old key's ticket still binds (%v)", why)
	}
}

func TestWithoutAnIssuerNobodyIsAdmitted(t *testing.T) {
	var issuer key.SigningPublic
	w := newRelay(t, func(c *Config) { issuer, c.Issuer = c.Issuer, key.SigningPublic{} }).serveUDP(nil)
	n := w.member(1).udp()
	if why, ok := n.tryBind(time.Second); ok || why != wire.RefusedForged {
		t.Errorf("bound: %v, refused: %v", ok, why)
	}
	w.relay.SetIssuer(issuer)
	n.bind()
	w.relay.SetIssuer(key.NewSigning().Public())
	if st := w.relay.Stats(); st.Nodes != 0 {
		t.Errorf("another issuer's nodes stay: %+v", st)
	}
}

// What cannot be asked for cannot be had: no frame names an address, so what listens on the relay's machine or
// in its private network is out of reach, whatever is sent and from wherever it claims to come.
func TestNoFrameReachesAnAddressThatHasNotBound(t *testing.T) {
	w := newRelay(t, nil)
	socket, err := host.NewUDPSocket(listenUDP(t, "udp4", "127.0.0.1:0"))
	if err != nil {
		t.Fatal(err)
	}
	victim := listenUDP(t, "udp4", "127.0.0.1:0")
	at := victim.LocalAddr().(*net.UDPAddr).AddrPort()
	l := w.relay.newLoop(socket, nil)
	m := w.member(1)
	box, _ := wire.RelayBox(m.key, w.desc.Key)
	ip := at.Addr().As4()
	for i, b := range [][]byte{
		append(wire.AppendData(nil, 1), "x"...),
		append(wire.AppendData(nil, weft.NodeID(ip[0])<<24|weft.NodeID(ip[3])), "an address as a number"...),
		append(wire.AppendData(nil, weft.NodeID(at.Port())), "a port as a number"...),
		wire.AppendBind(nil, wire.Bind{Ticket: m.ticket, Cookie: [16]byte{1, 2, 3}}, box),
		wire.AppendBind(nil, wire.Bind{Ticket: m.ticket, Cookie: w.relay.cookies.make(netip.MustParseAddrPort("192.0.2.1:99"), 0)}, box),
	} {
		// As if it came from the victim: all that a forged source can do.
		l.begin()
		l.take(&host.UDPRead{Data: b, Segment: len(b), From: at})
		l.flush()
		victim.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
		buf := make([]byte, 2048)
		n, _, err := victim.ReadFromUDPAddrPort(buf)
		if err != nil {
			continue
		}
		if kind, _ := wire.KindOf(buf[:n]); kind != wire.KindChallenge || n*4 > len(b) {
			t.Errorf("datagram %d of %d bytes has the victim sent %d: %x", i, len(b), n, buf[:n])
		}
	}
	if st := w.relay.Stats(); st.Nodes != 0 {
		t.Errorf("a forged source is bound: %+v", st)
	}
}

func TestGarbageIsDroppedAndCounted(t *testing.T) {
	w := newRelay(t, nil).serveUDP(nil)
	a, b := w.member(1).udp().bind(), w.member(2).udp().bind()
	before := w.relay.Stats().Drops[DropMalformed]
	garbage := [][]byte{
		{}, {0}, {0xF7}, {0xF7, 1}, {0xF7, 1, 2}, {0xF7, 1, 2, 0}, {0xF7, 1, 2, 0, 0, 0, 0, 2},
		{0xF7, 2, 2, 0, 0, 0, 0, 2, 'x'}, {0xF7, 1, 2, 1, 0, 0, 0, 2, 'x'}, {0xF7, 1, 9, 0, 1, 2, 3, 4},
		append([]byte{0xF7, 1, 3, 0}, make([]byte, 175)...), append([]byte{0xF7, 1, 3, 0}, make([]byte, 177)...),
		wire.AppendChallenge(nil, wire.Challenge{}), wire.AppendRefused(nil, [8]byte{}, wire.RefusedForged),
		{1, 0, 0, 0, 5}, bytes.Repeat([]byte{0xFF}, 1400), make([]byte, 65507),
	}
	for _, g := range garbage {
		a.write(g)
	}
	a.send(2, "and on")
	b.want(1, "and on")
	a.wantNothing()
	dropped := w.relay.Stats().Drops[DropMalformed] - before
	if want := uint64(len(garbage) - 1); dropped != want { // the empty one is nothing at all
		t.Errorf("%d of %d are counted", dropped, want)
	}
}

func FuzzDatagramsAtTheRelay(f *testing.F) {
	w := newRelay(f, nil)
	socket, err := host.NewUDPSocket(listenUDP(f, "udp4", "127.0.0.1:0"))
	if err != nil {
		f.Fatal(err)
	}
	a := w.member(1)
	from := listenUDP(f, "udp4", "127.0.0.1:0").LocalAddr().(*net.UDPAddr).AddrPort()
	box, _ := wire.RelayBox(a.key, w.desc.Key)
	cookie := w.relay.cookies.make(from, 0)
	good := wire.AppendBind(nil, wire.Bind{Ticket: a.ticket, Cookie: cookie}, box)
	f.Add([]byte{}, 0)
	f.Add(good, 0)
	f.Add(bytes.Repeat(append(wire.AppendData(nil, 1), "hello"...), 5), 13)
	f.Add(append(bytes.Repeat(append(wire.AppendData(nil, 1), "hello"...), 5), 1, 2, 3), 13)
	f.Add(append(append(wire.AppendData(nil, 1), "hello"...), good...), 13)
	f.Add(append([]byte{0, 1, 0, 0, 0x21, 0x12, 0xA4, 0x42}, make([]byte, 12)...), 0)
	f.Add(wire.AppendLocate(nil, wire.Locate{Node: 1}, box), 0)
	f.Add(append(wire.AppendProbe(nil, wire.Probe{Port: 9}, box), wire.AppendProbe(nil, wire.Probe{Port: 9}, box)...), wire.ProbeSize)
	l := w.relay.newLoop(socket, func(dst, req []byte, from, local netip.AddrPort) (stun.Reply, bool) {
		return stun.Reply{Packet: append(dst, req...), From: local, To: from}, len(req)%2 == 0
	})
	w.relay.takeBind(nil, bind{frame: good, from: from, socket: socket})
	if w.relay.Stats().UDP != 1 {
		f.Fatal("the seed is not bound")
	}
	f.Fuzz(func(t *testing.T, b []byte, segment int) {
		if len(b) == 0 || len(b) > 1<<16 {
			return
		}
		if segment <= 0 || segment > len(b) {
			segment = len(b)
		}
		l.begin()
		l.take(&host.UDPRead{Data: bytes.Clone(b), Segment: segment, From: from})
		l.take(&host.UDPRead{Data: bytes.Clone(b), Segment: segment, From: netip.MustParseAddrPort("127.0.0.1:9")})
		l.flush()
		for len(w.relay.slow.waiting) > 0 {
			w.relay.takeBind(nil, <-w.relay.slow.waiting)
		}
		if st := w.relay.Stats(); st.Nodes > 1 {
			t.Fatalf("%x binds somebody: %+v", b, st)
		}
	})
}
