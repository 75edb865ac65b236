package node

import (
	"context"
	"net"
	"net/netip"
	"testing"
	"time"

	"weft"
	"weft/key"
	"weft/path"
	"weft/stun"
)

// aMesh is a mesh in userspace mode whose goroutine does not run: the test is its goroutine. It has one peer, and
// one relay whose STUN port is at that address.
func aMesh(t *testing.T, server netip.AddrPort) (*mesh, *peer) {
	t.Helper()
	self := weft.Node{ID: 1, Name: "ann", Addrs: []netip.Addr{netip.MustParseAddr("100.64.0.1")}}
	peerKey := key.NewPrivate[key.Node]().Public()
	m := weft.NetworkMap{
		Self: self, Domain: "weft.internal",
		Peers:  []weft.Node{{ID: 2, Name: "bob", Key: peerKey, Addrs: []netip.Addr{netip.MustParseAddr("100.64.0.2")}}},
		Relays: []weft.Relay{{ID: 1, Name: "home"}},
	}
	dev, err := openDevice(Config{Userspace: true}, m, Settings{}.mtu(), silent)
	if err != nil {
		t.Fatal(err)
	}
	me, err := newMesh(meshConfig{
		Key: key.NewPrivate[key.Node](), Device: dev, Logger: silent, StateDir: t.TempDir(), Settings: Settings{NoPortMap: true},
	}, m)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { me.engine.Close() })
	if err := me.engine.Up(); err != nil {
		t.Fatal(err)
	}
	me.netmap = m
	me.relays[1] = &relayLink{relay: m.Relays[0], addrs: []netip.AddrPort{server}, cancel: func() {}}
	me.setPeers(time.Now())
	return me, me.peers[2]
}

// works is the mesh's loop, until a condition holds.
func (me *mesh) works(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.After(20 * time.Second)
	for {
		next := me.pollAsks(time.Now())
		if ok() {
			return
		}
		wait := time.Hour
		if !next.IsZero() {
			wait = time.Until(next)
		}
		select {
		case f := <-me.frames:
			me.take(time.Now(), f)
		case <-time.After(wait):
		case <-deadline:
			t.Fatalf("did not come about: %s", what)
		}
	}
}

// stunServer answers STUN on loopback, or only swallows it.
func stunServer(t *testing.T, answers bool) netip.AddrPort {
	t.Helper()
	c, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	if answers {
		go func() { ended <- stun.Serve(ctx, &stun.Responder{}, c) }()
	} else {
		ended <- nil
	}
	t.Cleanup(func() {
		cancel()
		<-ended
		c.Close()
	})
	return c.LocalAddr().(*net.UDPAddr).AddrPort()
}

func TestTheFirstOfFreshSocketsAsksWhereItIsSeen(t *testing.T) {
	me, p := aMesh(t, stunServer(t, true))
	me.openSockets(time.Now(), p, path.Opening{Count: 3, Ask: true})
	if len(me.spares.asks) != 1 || me.engine.Sockets() != 3 || len(me.spares.owner) != 3 {
		t.Fatalf("%d questions, %d sockets", len(me.spares.asks), me.engine.Sockets())
	}
	var q *ask
	for link, x := range me.spares.asks {
		if q = x; q.opened[0].Link != link {
			t.Fatalf("link %#x asks, and not the first, %#x", link, q.opened[0].Link)
		}
	}
	me.works(t, "the answer", func() bool { return len(me.spares.asks) == 0 })
	if want := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), q.opened[0].Port); q.opened[0].Mapped != want {
		t.Errorf("the first is seen at %v, not %v", q.opened[0].Mapped, want)
	}
	if q.opened[1].Mapped.IsValid() || q.opened[2].Mapped.IsValid() {
		t.Error("the others asked, too")
	}
	if !p.due {
		t.Error("the agent is not asked what it makes of it")
	}
	me.leave(time.Now(), p)
	if n := me.engine.Sockets(); n != 0 || len(me.spares.owner)+len(me.spares.ports) != 0 {
		t.Errorf("%d sockets of a peer that left are open, %d are remembered", n, len(me.spares.owner))
	}
}

func TestASilentServerDelaysFreshSocketsByASecondAtMost(t *testing.T) {
	me, p := aMesh(t, stunServer(t, false))
	began := time.Now()
	me.openSockets(began, p, path.Opening{Count: 2, Ask: true})
	var q *ask
	for _, q = range me.spares.asks {
	}
	me.works(t, "giving up", func() bool { return len(me.spares.asks) == 0 })
	if took := time.Since(began); took < askRTO || took > 3*time.Second {
		t.Errorf("that took %v", took)
	}
	if q.opened[0].Mapped.IsValid() || !p.due {
		t.Errorf("%+v, due %v", q.opened, p.due)
	}
}

func TestSocketsOfANetworkThatIsNoMoreAreClosedWithTheirQuestion(t *testing.T) {
	me, p := aMesh(t, stunServer(t, false))
	me.openSockets(time.Now(), p, path.Opening{Count: 2, Ask: true})
	me.dropAsks(time.Now(), nil)
	if me.engine.Sockets() != 0 || len(me.spares.asks) != 0 {
		t.Errorf("%d sockets, %d questions", me.engine.Sockets(), len(me.spares.asks))
	}
}

func TestANodeWithoutAServerOfThatFamilyOpensSocketsAllTheSame(t *testing.T) {
	me, p := aMesh(t, netip.MustParseAddrPort("[2001:db8::1]:3478"))
	p.due = false
	me.openSockets(time.Now(), p, path.Opening{Count: 2, Ask: true})
	if len(me.spares.asks) != 0 || !p.due {
		t.Errorf("%d questions to nobody; due %v", len(me.spares.asks), p.due)
	}
}

func TestTheNearestRelayIsAskedForSTUN(t *testing.T) {
	four, six := netip.MustParseAddrPort("192.0.2.1:3478"), netip.MustParseAddrPort("[2001:db8::1]:3478")
	me, _ := aMesh(t, four)
	me.netmap.Relays = append(me.netmap.Relays, weft.Relay{ID: 2, Name: "other"})
	me.relays[2] = &relayLink{relay: me.netmap.Relays[1], addrs: []netip.AddrPort{six, netip.MustParseAddrPort("192.0.2.2:3478")}, cancel: func() {}}
	if a, b := me.stunServer(false), me.stunServer(true); a != four || b != six {
		t.Errorf("asked are %v and %v", a, b)
	}
}
