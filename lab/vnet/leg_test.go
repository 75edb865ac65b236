package vnet

import (
	"net/netip"
	"testing"
	"time"

	"weft"
)

// An ear notes what comes to a socket.
type ear struct {
	*Socket
	got []string
	at  []time.Duration
}

func newEar(t *testing.T, s *Socket, err error) *ear {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	e := &ear{Socket: s}
	s.Handle(func(now time.Time, from netip.AddrPort, b []byte) {
		e.got, e.at = append(e.got, from.Addr().String()+" "+string(b)), append(e.at, now.Sub(Epoch))
	})
	return e
}

func TestASocketBoundToALegSendsAndHearsByThatLegOnly(t *testing.T) {
	n := New(1)
	fibre := must(n.Internet().AddRouter("fibre", NATConfig{Mapping: weft.EndpointIndependentMapping, Filtering: weft.EndpointIndependentFiltering}, LinkConfig{Delay: 5 * time.Millisecond}))
	lte := must(n.Internet().AddRouter("lte", NATConfig{Mapping: weft.NoNAT}, LinkConfig{Delay: 40 * time.Millisecond}))
	if err := lte.EnableIPv6(NATConfig{Mapping: weft.NoNAT}); err != nil {
		t.Fatal(err)
	}
	ann := must(fibre.Inside().AddHost("ann", LinkConfig{}))
	mobile, err := ann.AddLeg("ann.lte", lte.Inside(), LinkConfig{})
	if err != nil {
		t.Fatal(err)
	}
	if err := ann.EnableIPv6(); err != nil {
		t.Fatal(err)
	}
	if ann.Addr6().IsValid() || !mobile.Addr6().IsValid() || len(ann.Legs()) != 2 {
		t.Fatalf("addresses are %v by the first leg and %v by the second", ann.Addr6(), mobile.Addr6())
	}
	bob := must(n.Internet().AddHost("bob", LinkConfig{}))
	ear0 := newEar(t, must(ann.Listen(7)), nil)
	s1, err := mobile.Listen(7)
	ear1 := newEar(t, s1, err)
	far := newEar(t, must(bob.Listen(9)), nil)
	to := netip.AddrPortFrom(bob.Addr(), 9)
	for _, s := range []*Socket{ear0.Socket, ear1.Socket} {
		if err := s.Send(to, []byte("hello"), 0); err != nil {
			t.Fatal(err)
		}
	}
	n.Run(time.Second)
	if len(far.got) != 2 || far.got[0] != fibre.NAT().config.Public[0].String()+" hello" || far.got[1] != mobile.Addr().String()+" hello" ||
		far.at[0] != 5*time.Millisecond || far.at[1] != 40*time.Millisecond {
		t.Errorf("bob heard %v at %v", far.got, far.at)
	}
	far.Send(netip.AddrPortFrom(mobile.Addr(), 7), []byte("by lte"), 0)
	n.Run(time.Second)
	if len(ear1.got) != 1 || len(ear0.got) != 0 {
		t.Errorf("what comes by the leg is heard as %v by its own socket, and %v by the other", ear1.got, ear0.got)
	}
	s1.Close()
	far.Send(netip.AddrPortFrom(mobile.Addr(), 7), []byte("again"), 0)
	n.Run(time.Second)
	if len(ear1.got) != 1 || len(ear0.got) != 1 || s1.Send(to, []byte("late"), 0) != ErrClosed {
		t.Errorf("after the leg's own socket is closed: %v, and %v by the other", ear1.got, ear0.got)
	}
	if out, in := lte.Carried(); out != 28+5 || in != 28*2+6+5 {
		t.Errorf("the mobile link carried %d bytes out and %d in", out, in)
	}
}

func TestALinkDiffersByDirectionAndIsCutInEither(t *testing.T) {
	n := New(1)
	ann := must(n.Internet().AddHost("ann", LinkConfig{}))
	bob := must(n.Internet().AddHost("bob", LinkConfig{}))
	if err := ann.SetLinks(LinkConfig{Delay: 10 * time.Millisecond}, LinkConfig{Delay: 30 * time.Millisecond}); err != nil {
		t.Fatal(err)
	}
	if err := ann.SetLinks(LinkConfig{}, LinkConfig{Loss: 2}); err == nil {
		t.Error("twice as many packets are lost as there are")
	}
	near, far := newEar(t, must(ann.Listen(1)), nil), newEar(t, must(bob.Listen(1)), nil)
	for i, c := range []struct {
		out, in   bool
		far, near int
	}{{false, false, 1, 1}, {true, false, 1, 2}, {false, true, 2, 2}, {true, true, 2, 2}, {false, false, 3, 3}} {
		ann.SetCut(c.out, c.in)
		near.Send(netip.AddrPortFrom(bob.Addr(), 1), nil, 0)
		far.Send(netip.AddrPortFrom(ann.Addr(), 1), nil, 0)
		began := n.Elapsed()
		n.Run(time.Second)
		if len(far.got) != c.far || len(near.got) != c.near {
			t.Errorf("cut %v: bob has heard %d, and ann %d", c, len(far.got), len(near.got))
		} else if i == 0 && (far.at[0]-began != 10*time.Millisecond || near.at[0]-began != 30*time.Millisecond) {
			t.Errorf("it takes %v out and %v in", far.at[0]-began, near.at[0]-began)
		}
	}
}

func TestWhatIsUnderWayWhenALinkIsCutArrives(t *testing.T) {
	n := New(1)
	ann := must(n.Internet().AddHost("ann", LinkConfig{Delay: 50 * time.Millisecond}))
	bob := must(n.Internet().AddHost("bob", LinkConfig{}))
	near, far := newEar(t, must(ann.Listen(1)), nil), newEar(t, must(bob.Listen(1)), nil)
	near.Send(netip.AddrPortFrom(bob.Addr(), 1), nil, 0)
	far.Send(netip.AddrPortFrom(ann.Addr(), 1), nil, 0)
	n.Run(time.Millisecond)
	ann.SetCut(true, true)
	n.Run(time.Second)
	if len(far.got) != 1 || len(near.got) != 1 {
		t.Errorf("bob has heard %d, and ann %d", len(far.got), len(near.got))
	}
}
