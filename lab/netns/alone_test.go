package netns

import (
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"weft"
	"weft/lab/vnet"
)

func TestAHostAloneBehindItsRouterAndOneWithTwoRoutersReachAServerByEach(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	server := must(l.AddHost("server"))(t)
	none := vnet.NATConfig{Mapping: weft.NoNAT}
	first, second := must(l.AddNATRouter("gw0", none))(t), must(l.AddNATRouter("gw1", none))(t)
	h := must(first.AddHost("host", Alone()))(t)
	if err := second.LeadInto(h, "eth1"); err != nil {
		t.Fatal(err)
	}
	further := second.Inside().Prefix().Masked().Addr().Next().Next()
	if err := batch(h.Namespace(), "link set eth1 up", "addr add "+further.String()+"/28 dev eth1",
		"rule add from "+further.String()+" lookup 101", "route add default via "+second.Inside().Gateway().String()+" dev eth1 table 101"); err != nil {
		t.Fatal(err)
	}
	s := udp(t, server, "0.0.0.0:7000")
	for _, from := range []netip.Addr{h.Addr(), further} {
		c := udp(t, h, at(from, 6000).String())
		c.send(at(server.Addr(), 7000), "hello")
		if got := s.expect("hello"); got != at(from, 6000) {
			t.Errorf("what was sent from %v comes from %v", from, got)
		}
		s.send(at(from, 6000), "back")
		c.expect("back")
	}
	out, in, err := second.LinkCounts()
	if err != nil || out.Frames == 0 || in.Frames == 0 {
		t.Errorf("the second router has carried %d and %d packets: %v", out.Frames, in.Frames, err)
	}

	for what, err := range map[string]error{
		"another host behind the first": failed(first.AddHost("late")),
		"another behind the second":     failed(second.AddHost("later")),
		"the same device again":         second.LeadInto(h, "eth2"),
		"the device of others":          leadTaken(t, l, h),
		"packets longer than frames":    first.Inside().SetMTU(9000),
		"a move":                        h.Move(l.Public()),
	} {
		if err == nil {
			t.Errorf("%s is allowed", what)
		}
	}
}

func failed[T any](_ T, err error) error { return err }

// leadTaken wants the device of a router that has a host behind it.
func leadTaken(t *testing.T, l *Lab, h *Host) error {
	t.Helper()
	r := must(l.AddNATRouter("gw2", vnet.NATConfig{Mapping: weft.NoNAT}))(t)
	must(r.AddHost("other"))(t)
	return r.LeadInto(h, "eth3")
}

func TestAHostAloneSeesItsCableGo(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	h := must(must(l.AddNATRouter("gw", restricted))(t).AddHost("host", Alone()))(t)
	running := func() (is bool) {
		if err := h.Do(func() error {
			i, err := net.InterfaceByName("eth0")
			is = err == nil && strings.Contains(i.Flags.String(), "running")
			return err
		}); err != nil {
			t.Fatal(err)
		}
		return is
	}
	for _, up := range []bool{true, false, true} {
		if err := h.SetUp(up); err != nil {
			t.Fatal(err)
		}
		for until := time.Now().Add(5 * time.Second); running() != up; {
			if time.Now().After(until) {
				t.Fatalf("the host does not see that its cable is up: %v", up)
			}
		}
	}
}
