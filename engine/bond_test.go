package engine

import (
	"encoding/binary"
	"net"
	"net/netip"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"weft"
	"weft/engine/segment"
	"weft/wire"
)

// detour is another way to a node: what comes to it goes on to the node, and back, unless it is cut.
type detour struct {
	c     *net.UDPConn // to whom the sender sends
	out   *net.UDPConn // from where the node hears
	to    netip.AddrPort
	from  atomic.Pointer[netip.AddrPort]
	cut   atomic.Bool
	last  atomic.Int32 // what is as long, in bytes, is the first that does not come through; 0: nothing is
	delay time.Duration
	ended sync.WaitGroup
}

func newDetour(t testing.TB, to netip.AddrPort, delay time.Duration) *detour {
	t.Helper()
	d := &detour{to: to, delay: delay}
	for _, c := range []**net.UDPConn{&d.c, &d.out} {
		u, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
		if err != nil {
			t.Fatal(err)
		}
		u.SetReadBuffer(4 << 20)
		*c = u
	}
	d.ended.Go(func() {
		d.pump(d.c, d.out, func(from netip.AddrPort) netip.AddrPort { d.from.Store(&from); return d.to })
	})
	d.ended.Go(func() {
		d.pump(d.out, d.c, func(netip.AddrPort) (to netip.AddrPort) {
			if from := d.from.Load(); from != nil {
				to = *from
			}
			return to // or to nobody, before the sender was heard
		})
	})
	t.Cleanup(func() { d.c.Close(); d.out.Close(); d.ended.Wait() })
	return d
}

// pump passes on what comes, in its order.
func (d *detour) pump(in, out *net.UDPConn, where func(from netip.AddrPort) netip.AddrPort) {
	type late struct {
		b   []byte
		to  netip.AddrPort
		due time.Time
	}
	waiting := make(chan late, 1<<14)
	d.ended.Go(func() {
		for x := range waiting {
			time.Sleep(time.Until(x.due))
			out.WriteToUDPAddrPort(x.b, x.to)
		}
	})
	defer close(waiting)
	for b := make([]byte, 1<<16); ; {
		n, from, err := in.ReadFromUDPAddrPort(b)
		if err != nil {
			return
		}
		to := where(unmap(from))
		if last := d.last.Load(); last != 0 && n == int(last) {
			d.cut.Store(true)
		}
		if d.cut.Load() {
			continue
		}
		if d.delay == 0 {
			out.WriteToUDPAddrPort(b[:n], to)
			continue
		}
		waiting <- late{append([]byte(nil), b[:n]...), to, time.Now().Add(d.delay)}
	}
}

func addrPortOf(c *net.UDPConn) netip.AddrPort { return c.LocalAddr().(*net.UDPAddr).AddrPort() }

// manyWays is two nodes with two ways: one directly, one by a detour that takes longer.
func manyWays(t testing.TB, mode BondMode, delay time.Duration) (a, b *node, d *detour) {
	t.Helper()
	a, b = talking(t)
	d = newDetour(t, b.addr(), delay)
	b.Learn(a.id, addrPortOf(d.out))
	a.Learn(b.id, addrPortOf(d.c))
	a.SetBond(b.id, Bond{Mode: mode, Ways: []BondWay{{Via: weft.DirectVia(0, b.addr())}, {Via: weft.DirectVia(0, addrPortOf(d.c))}}})
	b.SetBond(a.id, Bond{Mode: mode, Ways: []BondWay{{Via: weft.DirectVia(0, a.addr())}, {Via: weft.DirectVia(0, addrPortOf(d.out))}}})
	return a, b, d
}

// bonds waits until a peer has agreed to a bond, with packets that go on in a series.
func bonds(t testing.TB, a, b *node, seq uint32) uint32 {
	t.Helper()
	eventually(t, "the peers bond", func() bool {
		t.Helper()
		defer func() {
			if t.Failed() {
				t.Logf("the bond: %+v\nthe receiver: %+v", a.BondStatus(b.id), b.BondStatus(a.id))
			}
		}()
		exchange(t, a, b, seq)
		seq++
		return a.BondStatus(b.id).On
	})
	return seq
}

// series sends packets in even steps and tells which came, in which order.
func series(t testing.TB, a, b *node, n int, every time.Duration, at func(i int)) (came []uint32) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(every)
		defer tick.Stop()
		for i := range n {
			if at != nil {
				at(i)
			}
			select {
			case a.tun.out <- marked(packet(addrOf(a.id), addrOf(b.id), uint32(i), 1000)):
			case <-a.tun.closed:
				return
			}
			<-tick.C
		}
	}()
	for last := time.NewTimer(patience); ; {
		select {
		case p := <-b.tun.in:
			last.Reset(patience)
			came = append(came, binary.BigEndian.Uint32(p[20:]))
			if len(came) == n {
				<-done
				return came
			}
		case <-last.C:
			<-done
			return came
		}
	}
}

// inOrder checks that all came once, and in order unless the machine was so slow that gaps were given up.
func inOrder(t testing.TB, a, b *node, came []uint32, n int) {
	t.Helper()
	r := b.BondStatus(a.id).Receiver
	if len(came) != n {
		t.Errorf("%d of %d packets came; drops %+v, %+v, the receiver %+v", len(came), n, a.Drops(), b.Drops(), r)
	}
	seen := make(map[uint32]bool)
	late := 0
	for i, seq := range came {
		if seen[seq] {
			t.Fatalf("packet %d came twice", seq)
		}
		if seen[seq] = true; i > 0 && seq < came[i-1] {
			late++
		}
	}
	if gaps := r.ByTime + r.ByPaths + r.ByMemory + r.Late; late > 0 && gaps == 0 {
		t.Errorf("%d came behind later ones, and no gap was given up: %+v", late, r)
	} else if late > 0 {
		t.Logf("%d came behind later ones: %+v", late, r)
	}
}

func TestPacketsOfABondComeInOrder(t *testing.T) {
	a, b, _ := manyWays(t, BondAggregate, 10*time.Millisecond)
	bonds(t, a, b, 1)
	const n = 3000
	inOrder(t, a, b, series(t, a, b, n, 200*time.Microsecond, nil), n)
	s := a.BondStatus(b.id)
	if len(s.Ways) != 2 || !s.On || s.Mode != "aggregate" {
		t.Fatalf("status: %+v", s)
	}
	for _, w := range s.Ways {
		t.Logf("%v: %+v", w.Via, w.PathStatus)
	}
	if r := b.BondStatus(a.id).Receiver; r.Delivered < n {
		t.Errorf("the receiver: %+v", r)
	}
	exchange(t, b, a, 9)
}

func TestAWayThatFallsSilentCostsNoPacket(t *testing.T) {
	a, b, d := manyWays(t, BondAggregate, 0)
	bonds(t, a, b, 1)
	const n = 4000
	inOrder(t, a, b, series(t, a, b, n, 200*time.Microsecond, func(i int) { d.cut.Store(i >= n/2) }), n)
	s := a.BondStatus(b.id)
	t.Logf("%+v", s.Events)
	for _, w := range s.Ways {
		t.Logf("%v: %+v", w.Via, w.PathStatus)
	}
}

func TestAWayThatIsTakenOutCostsNoPacket(t *testing.T) {
	a, b, d := manyWays(t, BondAggregate, 5*time.Millisecond)
	bonds(t, a, b, 1)
	const n = 2000
	inOrder(t, a, b, series(t, a, b, n, 200*time.Microsecond, func(i int) {
		if i == n/2 {
			d.cut.Store(true)
			a.SetBond(b.id, Bond{Mode: BondAggregate, Ways: []BondWay{{Via: weft.DirectVia(0, b.addr())}}})
		}
	}), n)
	bond := a.Engine.peer(b.id).bond.Load()
	if bond == nil {
		t.Fatal("the bond has ended already")
	}
	bond.mu.Lock()
	bond.closing = a.Engine.bondNow() // as if it had been so long
	bond.mu.Unlock()
	eventually(t, "the bond of one way ends", func() bool {
		exchange(t, a, b, n)
		return a.Engine.peer(b.id).bond.Load() == nil
	})
	exchange(t, a, b, n)
}

// TestAWayThatIsBackJoinsTheBondThatItLeft has one fail, and come back seconds later. Nobody is told of another bond meanwhile, and what is lost is sent again
// as ever.
func TestAWayThatIsBackJoinsTheBondThatItLeft(t *testing.T) {
	a, b, d := manyWays(t, BondAggregate, 5*time.Millisecond)
	bonds(t, a, b, 1)
	one, two := BondWay{Via: weft.DirectVia(0, b.addr())}, BondWay{Via: weft.DirectVia(0, addrPortOf(d.c))}
	before := a.Engine.peer(b.id).bond.Load()
	const n = 3000
	inOrder(t, a, b, series(t, a, b, n, time.Millisecond, func(i int) {
		switch i {
		case 100:
			d.cut.Store(true)
			a.SetBond(b.id, Bond{Mode: BondAggregate, Ways: []BondWay{one}})
		case 2700:
			d.cut.Store(false)
			a.SetBond(b.id, Bond{Mode: BondAggregate, Ways: []BondWay{one, two}})
		}
	}), n)
	if a.Engine.peer(b.id).bond.Load() != before || !a.BondStatus(b.id).On {
		t.Error("it is another bond")
	}
	if a.Engine.peer(b.id).withdrew.Load() != 0 {
		t.Error("the peer was told that there is none")
	}
}

// TestWhereThereIsNoBondAnyMoreNothingIsToldOfWhatComes has a bond end: who receives is to know, or it would go on telling what came, and wait for
// what is lost, which nobody sends again.
func TestWhereThereIsNoBondAnyMoreNothingIsToldOfWhatComes(t *testing.T) {
	a, b, d := manyWays(t, BondAggregate, 0)
	bonds(t, a, b, 1)
	a.SetBond(b.id, Bond{})
	b.SetBond(a.id, Bond{})
	told := func() uint64 {
		return counters(b, a.id, weft.DirectVia(0, a.addr())).TxPackets
	}
	const n = 50
	eventually(t, "one way is all, and nothing is told", func() bool {
		before := told()
		for i, seq := range series(t, a, b, n, 10*time.Millisecond, nil) { // longer than feedback waits
			if seq != uint32(i) {
				t.Fatalf("packet %d came as the %dth", seq, i)
			}
		}
		return told()-before <= 1 // a keepalive
	})
	a.SetBond(b.id, Bond{Mode: BondAggregate, Ways: []BondWay{{Via: weft.DirectVia(0, b.addr())}, {Via: weft.DirectVia(0, addrPortOf(d.c))}}})
	bonds(t, a, b, n)
}

func TestARedundantBondLosesNothingWhereOneWayIsDead(t *testing.T) {
	a, b, d := manyWays(t, BondRedundant, 0)
	bonds(t, a, b, 1)
	const n = 1000
	came := series(t, a, b, n, 500*time.Microsecond, func(i int) { d.cut.Store(i >= n/2) })
	// Where the machine is slow, the second way has no room for a copy now and then, and a gap is given up before what was lost is sent again.
	if r := b.BondStatus(a.id).Receiver; len(came) < n-n/20 || len(came) < n && r.ByPaths+r.ByTime == 0 {
		t.Errorf("%d of %d packets came: %+v", len(came), n, r)
	}
	if c := counters(a, b.id, weft.DirectVia(0, addrPortOf(d.c))); c.TxPackets < n/4 {
		t.Errorf("%d packets went by the second way", c.TxPackets)
	}
}

// later is what sends by a stream without waiting for who receives, as streams do not.
type later struct{ waiting chan [][]byte }

// newLater delivers what is sent by it, in order, until the nodes are closed.
func newLater(t testing.TB, deliver func([][]byte), nodes ...*node) *later {
	s := &later{make(chan [][]byte, 1024)}
	var ended sync.WaitGroup
	ended.Go(func() {
		for datagrams := range s.waiting {
			deliver(datagrams)
		}
	})
	t.Cleanup(func() {
		for _, x := range nodes {
			x.Close()
		}
		close(s.waiting)
		ended.Wait()
	})
	return s
}

func (s *later) SendTo(_ weft.NodeID, datagrams [][]byte) error {
	list := make([][]byte, len(datagrams))
	for i, d := range datagrams {
		list[i] = append([]byte(nil), d...)
	}
	s.waiting <- list
	return nil
}

func (s *later) SendAhead(id weft.NodeID, b []byte) error { return s.SendTo(id, [][]byte{b}) }

// lateRelay is a stream to a relay from one node to the other.
func lateRelay(t testing.TB, from, to *node) *later {
	s := &fakeStream{viaStream.Relay, from.id, map[weft.NodeID]*node{from.id: from, to.id: to}}
	return newLater(t, func(datagrams [][]byte) { s.SendTo(to.id, datagrams) }, from, to)
}

func TestRelaysAreWaysLikeAnyOther(t *testing.T) {
	a, b := talking(t)
	a.SetRelay(viaStream.Relay, netip.AddrPort{}, lateRelay(t, a, b))
	b.SetRelay(viaStream.Relay, netip.AddrPort{}, lateRelay(t, b, a))
	ways := []weft.Via{viaUDP, viaStream}
	set := func(x, y *node) {
		x.SetBond(y.id, Bond{Mode: BondRedundant, Ways: []BondWay{{Via: ways[0]}, {Via: ways[1]}}})
		x.SetRoute(y.id, viaUDP)
	}
	set(a, b)
	set(b, a)
	bonds(t, a, b, 1)
	const n = 500
	inOrder(t, a, b, series(t, a, b, n, 500*time.Microsecond, nil), n)
	for _, via := range ways {
		if c := counters(a, b.id, via); c.TxPackets < n/2 {
			t.Errorf("by %v went %d packets", via, c.TxPackets)
		}
	}
}

func TestWithoutAnAnswerPacketsGoByTheRoute(t *testing.T) {
	a, b := talking(t)
	// What comes by ways that the peer was not told of it does not answer.
	d, e := newDetour(t, b.addr(), 0), newDetour(t, b.addr(), 0)
	b.SetRoute(a.id, weft.DirectVia(0, netip.MustParseAddrPort("127.0.0.1:9")))
	a.SetBond(b.id, Bond{Mode: BondAggregate, Ways: []BondWay{{Via: weft.DirectVia(0, addrPortOf(d.c))}, {Via: weft.DirectVia(0, addrPortOf(e.c))}}})
	for seq := range uint32(200) {
		exchange(t, a, b, seq)
	}
	if s := a.BondStatus(b.id); s.On || s.Why == "" {
		t.Errorf("%+v", s)
	}
}

func TestABondThatWasSetForAStrangerIsNone(t *testing.T) {
	n := start(t, 1)
	n.SetBond(9, Bond{Mode: BondAggregate, Ways: []BondWay{{Via: viaUDP}, {Via: viaStream}}})
	if s := n.BondStatus(9); s.On || s.Why == "" {
		t.Errorf("%+v", s)
	}
}

func TestAFarWaySaysItsNumberBeforeAnybodyWaitsForIt(t *testing.T) {
	const far = 200 * time.Millisecond
	a, b, d := manyWays(t, BondAggregate, far)
	a.SetBond(b.id, Bond{Mode: BondAggregate, Ways: []BondWay{{Via: weft.DirectVia(0, b.addr()), RTT: time.Millisecond}, {Via: weft.DirectVia(0, addrPortOf(d.c)), RTT: 2 * far}}})
	seq := bonds(t, a, b, 0)
	ways := func() (named int) {
		a.mu.RLock()
		bond := a.peers[b.id].bond.Load()
		a.mu.RUnlock()
		bond.mu.Lock()
		defer bond.mu.Unlock()
		for _, w := range bond.ways[:bond.live] {
			if w.named.Load() {
				named++
			}
		}
		return named
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the bond: %+v\nthe receiver: %+v", a.BondStatus(b.id), b.BondStatus(a.id))
		}
	})
	eventually(t, "what is told of what came names both ways", func() bool {
		exchange(t, a, b, seq)
		seq++
		return ways() == 2
	})
	if r := b.BondStatus(a.id).Receiver; r.ByTime+r.ByPaths > 0 {
		t.Errorf("somebody waited for the number of a way that takes %v: %+v", far, r)
	}
}

// Packets lie in their socket, for a share of the shortest round trip, only where that is known to be long.
func TestOnlyWhatComesFromFarAwayMayLie(t *testing.T) {
	a, b, d := manyWays(t, BondAggregate, 0)
	bonds(t, a, b, 0)
	p := a.Engine.peer(b.id)
	if got := p.collects(); got != 0 {
		t.Errorf("where no round trip is known: %v", got)
	}
	for _, c := range []struct{ one, other, want time.Duration }{
		{16 * time.Millisecond, 160 * time.Millisecond, time.Millisecond},
		{160 * time.Millisecond, 320 * time.Microsecond, 20 * time.Microsecond},
		{160 * time.Millisecond, 0, 0},
	} {
		a.SetBond(b.id, Bond{Mode: BondAggregate, Ways: []BondWay{{Via: weft.DirectVia(0, b.addr()), RTT: c.one},
			{Via: weft.DirectVia(0, addrPortOf(d.c)), RTT: c.other}}})
		eventually(t, "what comes may lie for a share", func() bool { return p.collects() == c.want })
	}
	a.SetBond(b.id, Bond{})
	eventually(t, "without a bond nothing lies", func() bool { return p.collects() == 0 })
}

func TestWithOneWayThereIsNoBond(t *testing.T) {
	a, b := talking(t)
	a.SetBond(b.id, Bond{Mode: BondAggregate, Ways: []BondWay{{Via: weft.DirectVia(0, b.addr())}}})
	if a.Engine.peer(b.id).bond.Load() != nil {
		t.Error("there is one")
	}
	a.SetBond(b.id, Bond{Mode: BondOff, Ways: []BondWay{{Via: weft.DirectVia(0, b.addr())}, {Via: viaUDP}}})
	if a.Engine.peer(b.id).bond.Load() != nil {
		t.Error("one that is off is there")
	}
}

func TestWhoOnlyReceivesHasABond(t *testing.T) {
	a, b, _ := manyWays(t, BondAggregate, 0)
	const n = 600
	came := 0
	for last := time.Now(); came < n && time.Since(last) < patience; { // nothing goes back but what is weft's own
		select {
		case a.tun.out <- marked(packet(addrOf(a.id), addrOf(b.id), uint32(came), 200)):
		default:
		}
		select {
		case <-b.tun.in:
			came++
			last = time.Now()
		case <-time.After(time.Millisecond):
		}
	}
	if came < n {
		t.Fatalf("%d packets came", came)
	}
	if s := b.BondStatus(a.id); !s.On || len(s.Ways) != 2 {
		t.Errorf("who receives: %+v", s)
	}
}

func TestAWayThatIsNoneTakesNothingFromTheOthers(t *testing.T) {
	a, b, d := manyWays(t, BondAggregate, 0)
	a.SetBond(b.id, Bond{Mode: BondAggregate, Ways: []BondWay{
		{Metric: 3}, {Via: weft.DirectVia(0, b.addr()), Metric: 10}, {Metric: 4}, {Via: weft.DirectVia(0, addrPortOf(d.c)), Metric: 20},
	}})
	s := a.BondStatus(b.id)
	if len(s.Ways) != 2 || s.Ways[0].Metric != 10 || s.Ways[1].Metric != 20 {
		t.Errorf("%+v", s.Ways)
	}
}

func TestWhatPeersSayInsideASessionIsChecked(t *testing.T) {
	a, b, _ := manyWays(t, BondAggregate, 0)
	seq := bonds(t, a, b, 1)
	var absurd wire.Feedback
	absurd.Session, absurd.Base, absurd.NWords = a.Engine.peer(b.id).current.Load().Remote, 1<<40, 1
	absurd.Words[0] = ^uint64(0)
	for _, frame := range [][]byte{
		{0}, {1}, {2}, {3}, {15}, {2, 0, 255, 255}, wire.AppendFeedback(nil, &absurd),
		wire.AppendOffer(nil, wire.Offer{Seq: 1 << 31, Path: 1 << 15}), wire.AppendOffer(nil, wire.Offer{Seq: 7, Path: 7, Answer: true}),
	} {
		out := newBurst(b.Engine)
		if err := b.sealInner(out, b.Engine.peer(a.id).current.Load(), nil, copyNone, append(make([]byte, 0, 256), frame...)); err != nil {
			t.Fatal(err)
		}
	}
	for range 100 {
		exchange(t, a, b, seq)
		seq++
		exchange(t, b, a, seq)
	}
}

func TestABondWithoutTrafficKeepsNoLine(t *testing.T) {
	a, b, _ := manyWays(t, BondAggregate, 0)
	seq := bonds(t, a, b, 1)
	o := newSender(a.Engine, &loop{packet: append(make([]byte, segment.HeaderSize), packet(addrOf(1), addrOf(2), seq, 100)...), give: 1})
	o.fill(true)
	o.serve()
	if len(o.lines) != 1 {
		t.Fatalf("%d lines while there is traffic", len(o.lines))
	}
	select {
	case <-b.tun.in:
	case <-time.After(patience):
		t.Fatal("the packet did not arrive")
	}
	eventually(t, "a line ends that nothing goes through", func() bool {
		o.roused = true
		o.serve()
		if len(o.lines) > 0 && o.lines[0].idle != 0 {
			o.lines[0].idle -= lineIdle // as if it had been so long
		}
		return len(o.lines) == 0
	})
	for range 10 {
		seq++
		exchange(t, a, b, seq)
	}
}

func TestBondedHotPathsAllocateNothing(t *testing.T) {
	if raceDetector {
		t.Skip("the race detector makes pools allocate")
	}
	a, b, _ := manyWays(t, BondAggregate, 0)
	bonds(t, a, b, 1)
	l := &loop{packet: super(addrOf(1), addrOf(2), 8)}
	o := newSender(a.Engine, l)
	once := func() {
		l.give = 1
		o.fill(true)
		o.serve()
	}
	for range 2000 { // until the log of what was sent is as large as it gets
		once()
	}
	if n := leastAllocs(once); n > 0 {
		t.Errorf("sending by a bond allocates %v times", n)
	}
}

// busy is a stream that an ordered's timer finds busy, once that is wanted.
type busy struct {
	nowhereAhead
	wanted      atomic.Bool
	found, free chan struct{}
	sent        atomic.Bool
}

func (s *busy) SendTo(weft.NodeID, [][]byte) error {
	if !strings.Contains(string(debug.Stack()), "(*ordered).ring") || !s.wanted.CompareAndSwap(true, false) {
		return nil
	}
	close(s.found)
	<-s.free
	s.sent.Store(true)
	return nil
}

func TestAnEngineEndsAfterWhatABondsTimerSends(t *testing.T) {
	a, b, d := manyWays(t, BondRedundant, 0)
	s := &busy{found: make(chan struct{}), free: make(chan struct{})}
	there := &fakeConnection{a, b, viaAccepted}
	a.SetConnection(b.id, viaDialed, newLater(t, func(x [][]byte) { there.SendTo(b.id, x) }, a, b))
	b.SetConnection(a.id, viaAccepted, s)
	a.SetBond(b.id, Bond{Mode: BondRedundant, Ways: []BondWay{{Via: weft.DirectVia(0, addrPortOf(d.c))}, {Via: viaDialed}}})
	b.SetBond(a.id, Bond{Mode: BondRedundant, Ways: []BondWay{{Via: weft.DirectVia(0, addrPortOf(d.out))}, {Via: viaAccepted}}})
	seq := bonds(t, a, b, 1)
	free := sync.OnceFunc(func() { close(s.free) })
	t.Cleanup(free) // before the nodes are closed
	s.wanted.Store(true)
	eventually(t, "the timer sends feedback", func() bool {
		a.tun.out <- packet(addrOf(a.id), addrOf(b.id), seq, 100)
		seq++
		select {
		case <-b.tun.in:
			return false
		case <-s.found:
			return true
		}
	})
	closed := make(chan struct{})
	go func() {
		b.Close()
		close(closed)
	}()
	select {
	case <-closed:
		t.Error("it ended while the timer sent")
	case <-time.After(100 * time.Millisecond):
	}
	free()
	if <-closed; !s.sent.Load() {
		t.Error("it ended before the timer had sent")
	}
}
