package engine

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"weft"
	"weft/key"
	"weft/wire"
	"weft/wireguard"
)

func TestPacketsCrossByEveryWay(t *testing.T) {
	for _, method := range []weft.Method{weft.Direct, weft.RelayUDP, weft.RelayStream} {
		t.Run(method.String(), func(t *testing.T) {
			a, b := pair(t)
			connect(t, a, b)
			there := map[weft.Method]weft.Via{weft.Direct: weft.DirectVia(0, b.addr()), weft.RelayUDP: viaUDP, weft.RelayStream: viaStream}[method]
			back := map[weft.Method]weft.Via{weft.Direct: weft.DirectVia(0, a.addr()), weft.RelayUDP: viaUDP, weft.RelayStream: viaStream}[method]
			a.SetRoute(b.id, there)
			b.SetRoute(a.id, back)
			for seq := range uint32(20) {
				exchange(t, a, b, seq)
				exchange(t, b, a, seq)
			}
			if a.Handshake(b.id).IsZero() {
				t.Error("no time of a handshake after packets have crossed")
			}
			// Every packet that was sent was received, by the same way, and by no other. The last keepalive
			// may be on its way.
			eventually(t, "the counters of both ends agree", func() bool {
				ab, ba := counters(a, b.id, there), counters(b, a.id, back)
				return ab.TxPackets >= 20 && ab.TxPackets == ba.RxPackets && ab.TxBytes == ba.RxBytes &&
					ba.TxPackets >= 20 && ba.TxPackets == ab.RxPackets && ba.TxBytes == ab.RxBytes
			})
			for _, c := range a.Counters(nil, b.id) {
				if c.Via != there && c.TxPackets+c.RxPackets > 0 {
					t.Errorf("packets went by %v: %+v", c.Via, c)
				}
			}
			if d := a.Drops(); d != (Drops{}) {
				t.Errorf("drops at a: %+v", d)
			}
			if d := b.Drops(); d != (Drops{}) {
				t.Errorf("drops at b: %+v", d)
			}
			if a.seen.activeCount(b.id) == 0 || b.seen.activeCount(a.id) == 0 {
				t.Error("nobody was told that the peer is active")
			}
		})
	}
}

func TestARouteSwitchUnderLoadLosesNoPacket(t *testing.T) {
	const (
		total  = 12000
		window = 64 // packets on their way: far less than any socket's buffer holds
	)
	a, b := pair(t)
	connect(t, a, b)
	vias := []weft.Via{weft.DirectVia(0, b.addr()), viaUDP, viaStream}
	b.SetRoute(a.id, weft.DirectVia(0, a.addr()))
	a.SetRoute(b.id, vias[0])
	exchange(t, a, b, 1<<20)

	var received atomic.Int64
	seen := make([]int, total)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for timeout := time.After(2 * patience); received.Load() < total; {
			select {
			case p := <-b.tun.in:
				seen[binary.BigEndian.Uint32(p[20:])]++
				received.Add(1)
			case <-timeout:
				return
			}
		}
	}()
	slots := time.NewTicker(100 * time.Microsecond)
	defer slots.Stop()
sending:
	for seq := range uint32(total) {
		for int64(seq)-received.Load() >= window {
			select {
			case <-slots.C:
			case <-done:
				break sending
			}
		}
		a.tun.out <- marked(packet(addrOf(a.id), addrOf(b.id), seq, 100+int(seq%1200)))
		if seq%97 == 0 {
			a.SetRoute(b.id, vias[seq/97%3])
		}
	}
	<-done
	for seq, n := range seen {
		if n != 1 {
			t.Fatalf("packet %d arrived %d times (%d of %d arrived); drops %+v, %+v", seq, n, received.Load(), total, a.Drops(), b.Drops())
		}
	}
	for _, via := range vias {
		if c := counters(a, b.id, via); c.TxPackets < total/10 {
			t.Errorf("by %v went %d of %d packets: the test switched nothing", via, c.TxPackets, total)
		}
	}
}

func TestAHandshakeWaitsForTheRouteAndIsSentOnce(t *testing.T) {
	a := start(t, 1)
	sink, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer sink.Close()
	mustSetPeers(t, a, Peer{ID: 2, Key: key.NewPrivate[key.Node]().Public(), Allowed: []netip.Prefix{netip.PrefixFrom(addrOf(2), 32)}})
	began := time.Now()
	a.tun.out <- packet(addrOf(1), addrOf(2), 1, 100)
	eventually(t, "a packet without a route makes the peer active", func() bool { return a.seen.activeCount(2) == 1 })
	eventually(t, "the initiation is kept", func() bool { return a.heldFor(2) })

	// A relay that is not connected yet is no way either: the order in which they come must not matter.
	a.SetRoute(2, viaUDP)
	if !a.heldFor(2) {
		t.Fatal("the initiation was given to a relay that is not there")
	}
	a.SetRelay(viaUDP.Relay, sink.LocalAddr().(*net.UDPAddr).AddrPort(), nil)
	buf := make([]byte, 2048)
	sink.SetReadDeadline(began.Add(wireguard.RekeyTimeout - 500*time.Millisecond)) // later, WireGuard begins again
	n, err := sink.Read(buf)
	if err != nil {
		t.Fatal(err)
	}
	id, payload, err := wire.ParseData(buf[:n])
	if err != nil || id != 2 || len(payload) != wireguard.InitiationSize || payload[0] != wireguard.TypeInitiation {
		t.Fatalf("got %x for %d: %v", payload, id, err)
	}
	a.SetRoute(2, weft.Via{})
	a.SetRoute(2, viaUDP)
	sink.SetReadDeadline(time.Now().Add(200 * time.Millisecond)) // WireGuard's own repetition comes after 5 s
	if n, err := sink.Read(buf); err == nil {
		t.Fatalf("the initiation came again: %x", buf[:n])
	}
}

// heldFor reports whether a handshake message waits.
func (n *node) heldFor(id weft.NodeID) (held bool) {
	n.control.do(func(time.Time) { held = n.Engine.peer(id).held.message != nil })
	return held
}

func TestAResponseGoesBackThroughTheRelayWhereThereIsNoRoute(t *testing.T) {
	a, b := pair(t)
	connect(t, a, b)
	a.SetRoute(b.id, viaStream)
	exchange(t, a, b, 1)
	eventually(t, "the response, and nothing else, is counted", func() bool {
		return counters(b, a.id, viaStream).TxPackets == 1
	})
}

func TestWhatIsNotWireGuardGoesToTheHandler(t *testing.T) {
	a, b := pair(t)
	connect(t, a, b)
	stun := make([]byte, 20)
	stun[1] = 1
	binary.BigEndian.PutUint32(stun[4:], 0x2112A442)
	peerFrame := append([]byte{wire.Magic, wire.Version, byte(wire.KindPeer), 0}, make([]byte, 60)...)
	bind := append([]byte{wire.Magic, wire.Version, byte(wire.KindChallenge), 0}, make([]byte, 24)...)

	for _, d := range [][]byte{stun, peerFrame, bind} {
		if err := a.WriteTo(0, b.addr(), d); err != nil {
			t.Fatal(err)
		}
	}
	for _, via := range []weft.Via{weft.DirectVia(0, b.addr()), viaUDP, viaStream} {
		if err := a.Send(b.id, via, peerFrame); err != nil {
			t.Fatal(err)
		}
	}
	var datagrams, relayed []recorded
	eventually(t, "all six arrive", func() bool {
		d, r := b.seen.take()
		datagrams, relayed = append(datagrams, d...), append(relayed, r...)
		return len(datagrams) == 4 && len(relayed) == 2
	})
	count := map[string]int{}
	for _, d := range datagrams {
		if d.from != a.addr() {
			t.Errorf("from %v, want %v", d.from, a.addr())
		}
		count[fmt.Sprint(d.class, d.b == string(stun), d.b == string(peerFrame), d.b == string(bind))]++
	}
	want := map[string]int{
		fmt.Sprint(wire.ClassSTUN, true, false, false): 1,
		fmt.Sprint(wire.ClassWeft, false, true, false): 2,
		fmt.Sprint(wire.ClassWeft, false, false, true): 1,
	}
	if fmt.Sprint(count) != fmt.Sprint(want) {
		t.Errorf("datagrams %v, want %v", count, want)
	}
	vias := map[weft.Via]bool{}
	for _, r := range relayed {
		if r.src != a.id || r.b != string(peerFrame) {
			t.Errorf("relayed: %+v", r)
		}
		vias[r.via] = true
	}
	if !vias[viaUDP] || !vias[viaStream] {
		t.Errorf("relayed by %v", vias)
	}
	if err := a.Send(b.id, weft.Via{Method: weft.RelayUDP, Relay: 99}, peerFrame); !errors.Is(err, ErrNoWay) {
		t.Errorf("by a relay that is not there: %v", err)
	}
	if err := a.Send(b.id, weft.Via{}, peerFrame); !errors.Is(err, ErrNoWay) {
		t.Errorf("by the zero via: %v", err)
	}
}

func TestStrangersAndGarbageAreDroppedAndCounted(t *testing.T) {
	a, b := pair(t)
	connect(t, a, b)
	a.SetRoute(b.id, weft.DirectVia(0, b.addr()))
	b.SetRoute(a.id, weft.DirectVia(0, a.addr()))
	exchange(t, a, b, 1)
	stranger, err := net.DialUDP("udp4", nil, net.UDPAddrFromAddrPort(b.addr()))
	if err != nil {
		t.Fatal(err)
	}
	defer stranger.Close()
	inner := append([]byte{4, 0, 0, 0}, make([]byte, 60)...)
	before := b.Drops()
	stranger.Write(append(wire.AppendData(nil, a.id), inner...)) // no relay
	a.DeliverStream(viaStream.Relay, 77, [][]byte{inner})        // at a: no node 77
	b.DeliverStream(viaStream.Relay, a.id, [][]byte{
		append(wire.AppendData(nil, a.id), inner...), // a relayed frame in a relayed frame
		make([]byte, 40), // STUN's first bits
		nil,
	})
	// From the relay's address, but of a node that b does not know: the relay knows c, b does not.
	c := start(t, 3)
	relay := newFakeRelay(t, a, b, c)
	b.SetRelay(6, relay.addr(), nil)
	c.SetRelay(6, relay.addr(), nil)
	if err := c.Send(b.id, weft.Via{Method: weft.RelayUDP, Relay: 6}, inner); err != nil {
		t.Fatal(err)
	}
	eventually(t, "all are counted", func() bool {
		d := b.Drops()
		return d.NotRelay-before.NotRelay == 1 && d.NoPeer-before.NoPeer == 1 && d.Strange-before.Strange == 3 && a.Drops().NoPeer == 1
	})

	random := rand.NewChaCha8([32]byte{1})
	for i := range 2000 {
		g := make([]byte, i%1500)
		random.Read(g)
		if len(g) > 4 {
			switch i % 4 { // half of it with a beginning that somebody believes
			case 1:
				copy(g, []byte{byte(1 + i/4%4), 0, 0, 0})
			case 2:
				copy(g, []byte{wire.Magic, wire.Version, byte(i / 4 % 8), 0})
			}
		}
		stranger.Write(g)
	}
	exchange(t, a, b, 2)
	exchange(t, b, a, 3)
	if d, _ := b.seen.take(); len(d) == 0 {
		t.Error("no weft frame among the garbage reached the handler: the test sends nothing")
	}
}

func TestRelayedPacketsAreTakenFromTheRelaysAddressOnly(t *testing.T) {
	a, b := pair(t)
	connect(t, a, b)
	a.SetRoute(b.id, viaUDP)
	b.SetRoute(a.id, viaUDP)
	exchange(t, a, b, 1)
	b.RemoveRelay(viaUDP.Relay)
	before := b.Drops().NotRelay
	a.tun.out <- packet(addrOf(1), addrOf(2), 2, 100)
	eventually(t, "frames of a relay that was removed are dropped", func() bool { return b.Drops().NotRelay > before })
	if len(b.tun.in) != 0 {
		t.Error("a packet came through")
	}
}

func TestOnlyTheFirstOfManyFindsThePeerIdle(t *testing.T) {
	n := still(t, 1)
	mustSetPeers(t, n, Peer{ID: 2, Key: key.NewPrivate[key.Node]().Public()})
	p := n.Engine.peer(2)
	// Two goroutines meet at the same instant, again and again, each time after a while without data.
	const rounds = 5000
	var round, arrived atomic.Int64
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for r := int64(1); r <= rounds; r++ {
				for round.Load() < r {
					runtime.Gosched()
				}
				n.touch(p, r) // not the clock's: after a second without the processor the peer is idle again
				arrived.Add(1)
			}
		})
	}
	for r := int64(1); r <= rounds; r++ {
		p.lastData.Store(-2 * int64(idleAfter))
		round.Store(r)
		for arrived.Load() < 2*r {
			runtime.Gosched()
		}
	}
	wg.Wait()
	if got := n.seen.activeCount(2); got != rounds {
		t.Errorf("the peer was idle %d times, and that it is so no more was told %d times", rounds, got)
	}
}

func TestAPortInUseIsSaidInOneSentence(t *testing.T) {
	taken, err := net.ListenUDP("udp4", &net.UDPAddr{})
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	cfg := Config{
		Key: key.NewPrivate[key.Node](), Self: 1, Device: newMemTUN(), Handler: &recorder{},
		Logger: slog.New(slog.DiscardHandler), Port: taken.LocalAddr().(*net.UDPAddr).AddrPort().Port(),
	}
	_, err = New(cfg)
	if !errors.Is(err, syscall.EADDRINUSE) || !strings.Contains(err.Error(), fmt.Sprintf("UDP port %d is in use by another program: stop", cfg.Port)) {
		t.Fatalf("got %v", err)
	}
	cfg.AnyPortIfTaken = true
	e, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	if e.Port() == 0 || e.Port() == cfg.Port {
		t.Errorf("port %d", e.Port())
	}
}

func TestTheEngineEndsWithItsDevice(t *testing.T) {
	n := start(t, 1)
	n.tun.Close() // as the kernel does when the interface is deleted
	select {
	case <-n.Done():
	case <-time.After(patience):
		t.Fatal("the engine goes on without a device")
	}
	if err := n.WriteTo(0, n.addr(), []byte("x")); !errors.Is(err, net.ErrClosed) {
		t.Errorf("sending from an engine that has ended: %v", err)
	}
}

func TestAGreetingBeginsOneHandshake(t *testing.T) {
	a := start(t, 1)
	sink, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer sink.Close()
	mustSetPeers(t, a, Peer{ID: 2, Key: key.NewPrivate[key.Node]().Public()})
	a.SetRoute(2, weft.DirectVia(0, sink.LocalAddr().(*net.UDPAddr).AddrPort()))
	began := time.Now()
	a.Greet(9) // nobody
	a.Greet(2)
	a.Greet(2)
	buf := make([]byte, 2048)
	sink.SetReadDeadline(began.Add(wireguard.RekeyTimeout - 500*time.Millisecond))
	if n, err := sink.Read(buf); err != nil || n != wireguard.InitiationSize || buf[0] != wireguard.TypeInitiation {
		t.Fatalf("got %x, %v", buf[:n], err)
	}
	sink.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
	if n, err := sink.Read(buf); err == nil {
		t.Fatalf("and again %x", buf[:n])
	}
}
