package vnet

import (
	"math"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"weft"
)

// must is a value that the test cannot do without.
func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// echo has a socket send back what it gets.
func echo(s *Socket) {
	s.Handle(func(_ time.Time, from netip.AddrPort, b []byte) { s.Send(from, b, 0) })
}

// host adds one with a socket on port 1000.
func host(s *Segment, name string, link LinkConfig) (*Host, *Socket) {
	h := must(s.AddHost(name, link))
	return h, must(h.Listen(1000))
}

// at is where a socket on port 1000 is reached without NATs.
func at(h *Host) netip.AddrPort { return netip.AddrPortFrom(h.Addr(), 1000) }

var cone = NATConfig{Mapping: eim, Filtering: apdf}

func TestAPacketCrossesTwoNATsAndItsEchoComesBack(t *testing.T) {
	net := New(1)
	server, s := host(net.Internet(), "server", LinkConfig{Delay: 10 * time.Millisecond})
	echo(s)
	carrier := must(net.Internet().AddRouter("carrier", cone, LinkConfig{Delay: 5 * time.Millisecond}))
	home := must(carrier.Inside().AddRouter("home", cone, LinkConfig{Delay: time.Millisecond}))
	_, ann := host(home.Inside(), "ann", LinkConfig{})
	var got string
	var arrived time.Time
	ann.Handle(func(now time.Time, from netip.AddrPort, b []byte) { got, arrived = from.String()+" "+string(b), now })
	var places []string
	net.Tap(func(e Event) { places = append(places, e.Kind.String()+" at "+e.Where) })
	if err := ann.Send(at(server), []byte("hello"), 0); err != nil {
		t.Fatal(err)
	}
	if !net.RunUntil(time.Second, func() bool { return got != "" }) {
		t.Fatal("no echo")
	}
	if want := at(server).String() + " hello"; got != want {
		t.Errorf("the echo was %q, not %q", got, want)
	}
	if rtt := arrived.Sub(Epoch); rtt != 32*time.Millisecond || !net.Now().Equal(arrived) {
		t.Errorf("the round trip took %v", rtt)
	}
	want := []string{"sent at ann", "forwarded at home", "forwarded at carrier", "arrived at server",
		"sent at server", "forwarded at carrier", "forwarded at home", "arrived at ann"}
	if !slices.Equal(places, want) {
		t.Errorf("%v, want %v", places, want)
	}
}

// busy is a network where much happens by chance, and its log.
func busy(seed uint64) string {
	net := New(seed)
	var log strings.Builder
	net.Tap(func(e Event) { log.WriteString(e.String() + "\n") })
	lossy := LinkConfig{Rate: 1e6, Delay: 5 * time.Millisecond, Jitter: 3 * time.Millisecond, Loss: 0.1, Reorder: 0.1}
	server, s := host(net.Internet(), "server", lossy)
	echo(s)
	for _, name := range []string{"ann", "bob", "eve"} {
		r := must(net.Internet().AddRouter(name+"'s", NATConfig{Mapping: apdm, Filtering: adf}, lossy))
		h := must(r.Inside().AddHost(name, lossy))
		for range 20 {
			socket := must(h.Listen(0))
			net.After(time.Duration(net.Rand().IntN(1000))*time.Millisecond, func(time.Time) {
				socket.Send(at(server), make([]byte, net.Rand().IntN(1000)), 0)
			})
		}
	}
	net.Run(5 * time.Second)
	return log.String()
}

func TestTheSameSeedGivesTheSameEvents(t *testing.T) {
	first := busy(1)
	if len(first) < 1000 {
		t.Fatalf("little has happened:\n%s", first)
	}
	if second := busy(1); first != second {
		t.Error("the second time other things happened")
	}
	if other := busy(2); first == other {
		t.Error("another seed made no difference")
	}
}

func TestTimersAreCalledInTheOrderOfTheirTimesUnlessStopped(t *testing.T) {
	net := New(1)
	var got []int
	add := func(i int) func(time.Time) { return func(time.Time) { got = append(got, i) } }
	net.At(Epoch.Add(30*time.Millisecond), add(4))
	net.After(10*time.Millisecond, add(1))
	stopped := net.After(15*time.Millisecond, add(99))
	net.After(20*time.Millisecond, add(2))
	net.After(20*time.Millisecond, add(3))
	net.After(12*time.Millisecond, func(now time.Time) {
		stopped.Stop()
		net.At(now.Add(-time.Hour), add(0)) // at once
	})
	net.Run(30 * time.Millisecond)
	if !slices.Equal(got, []int{1, 0, 2, 3, 4}) || net.Elapsed() != 30*time.Millisecond {
		t.Errorf("%v at %v", got, net.Elapsed())
	}
	stopped.Stop() // its place is another's by now
	net.After(0, add(5))
	stopped.Stop()
	net.Run(0)
	if got[len(got)-1] != 5 {
		t.Error("a timer that was over has stopped another")
	}
	if net.RunUntil(time.Second, func() bool { return false }) || net.Elapsed() != 1030*time.Millisecond {
		t.Errorf("it is %v", net.Elapsed())
	}
}

// crossed is when packets arrive that are sent at intervals over one link, by their number.
func crossed(link LinkConfig, count int, interval time.Duration, size int) (order []int, times []time.Duration) {
	net := New(3)
	to, in := host(net.Internet(), "to", link)
	_, from := host(net.Internet(), "from", LinkConfig{})
	in.Handle(func(now time.Time, _ netip.AddrPort, b []byte) {
		order = append(order, int(b[0])<<8|int(b[1]))
		times = append(times, now.Sub(Epoch))
	})
	for i := range count {
		net.After(time.Duration(i)*interval, func(time.Time) {
			b := make([]byte, size)
			b[0], b[1] = byte(i>>8), byte(i)
			from.Send(at(to), b, 0)
		})
	}
	net.Run(time.Hour)
	return order, times
}

func TestALinkHasARateADelayAndAQueue(t *testing.T) {
	// 1,000 bytes on the wire at 1 Mbit/s take 8 ms; of 20 at once, 10,000 bytes may wait.
	_, times := crossed(LinkConfig{Rate: 1e6, Delay: 20 * time.Millisecond, Queue: 10_000}, 20, 0, 1000-headers4)
	if len(times) != 10 {
		t.Fatalf("%d packets of 1,000 bytes were in a queue of 10,000", len(times))
	}
	for i, got := range times {
		if want := time.Duration(i+1)*8*time.Millisecond + 20*time.Millisecond; got != want {
			t.Errorf("packet %d took %v, not %v", i, got, want)
		}
	}
	if _, times = crossed(LinkConfig{Rate: 1e6}, 100, 8*time.Millisecond, 1000-headers4); len(times) != 100 {
		t.Errorf("%d of 100 passed a link that is as fast as they are", len(times))
	}
}

func TestALinksJitterKeepsTheOrderAndItsReorderingDoesNot(t *testing.T) {
	order, times := crossed(LinkConfig{Delay: time.Millisecond, Jitter: 10 * time.Millisecond}, 1000, time.Millisecond, 10)
	if len(order) != 1000 || !slices.IsSorted(order) {
		t.Errorf("%d packets, in order: %v", len(order), slices.IsSorted(order))
	}
	late := 0
	for i, at := range times {
		took := at - time.Duration(order[i])*time.Millisecond
		if took < time.Millisecond || took > 11*time.Millisecond {
			t.Fatalf("packet %d took %v", order[i], took)
		}
		if took > 6*time.Millisecond {
			late++
		}
	}
	if late < 300 {
		t.Errorf("%d of 1,000 took more than half of the jitter", late)
	}
	order, _ = crossed(LinkConfig{Delay: time.Millisecond, Reorder: 0.1}, 1000, time.Millisecond, 10)
	overtaken := 0
	for i := 1; i < len(order); i++ {
		if order[i] < order[i-1] {
			overtaken++
		}
	}
	if len(order) != 1000 || overtaken < 50 || overtaken > 110 {
		t.Errorf("of %d packets %d were overtaken", len(order), overtaken)
	}
}

func TestALinkLosesTheShareOfPacketsThatItShould(t *testing.T) {
	order, _ := crossed(LinkConfig{Loss: 0.05}, 10_000, time.Microsecond, 10)
	// Five standard deviations of a binomial distribution.
	if lost := 10_000 - len(order); math.Abs(float64(lost)-500) > 5*math.Sqrt(10_000*0.05*0.95) {
		t.Errorf("%d of 10,000 were lost at 5 %%", lost)
	}
	if order, _ = crossed(LinkConfig{Loss: 1}, 100, 0, 10); len(order) > 0 {
		t.Errorf("%d came over a link that loses all", len(order))
	}
}

func TestALinkThatIsDownLosesWhatIsUnderWayToo(t *testing.T) {
	net := New(1)
	a, in := host(net.Internet(), "a", LinkConfig{Delay: 10 * time.Millisecond})
	_, out := host(net.Internet(), "b", LinkConfig{})
	arrived := 0
	in.Handle(func(time.Time, netip.AddrPort, []byte) { arrived++ })
	send := func(want int) {
		t.Helper()
		out.Send(at(a), []byte{1}, 0)
		net.Run(20 * time.Millisecond)
		if arrived != want {
			t.Errorf("%d have arrived, not %d", arrived, want)
		}
	}
	send(1)
	net.After(5*time.Millisecond, func(time.Time) { a.SetUp(false) })
	send(1)
	send(1)
	a.SetUp(true)
	send(2)
	if err := a.SetLink(LinkConfig{Loss: 1}); err != nil {
		t.Fatal(err)
	}
	send(2)
}

func TestAPacketWithALowTimeToLiveOpensItsOwnNATsAndReachesNobody(t *testing.T) {
	net := New(1)
	bob, in := host(net.Internet(), "bob", LinkConfig{})
	carrier := must(net.Internet().AddRouter("carrier", cone, LinkConfig{}))
	home := must(carrier.Inside().AddRouter("home", cone, LinkConfig{}))
	_, ann := host(home.Inside(), "ann", LinkConfig{})
	var last Event
	net.Tap(func(e Event) { last = e })
	heard := 0
	in.Handle(func(time.Time, netip.AddrPort, []byte) { heard++ })
	for _, c := range []struct {
		ttl   uint8
		where string
	}{{1, "home"}, {2, "carrier"}, {3, "internet"}, {DefaultHops + 2, "internet"}} {
		ann.Send(at(bob), []byte("open"), c.ttl)
		net.Run(time.Second)
		if last.Kind != Dropped || last.Verdict != DropTTL || last.Where != c.where {
			t.Errorf("with %d: %v", c.ttl, last)
		}
	}
	if heard != 0 {
		t.Fatal("it has arrived")
	}
	ann.Send(at(bob), []byte("open"), DefaultHops+3)
	net.Run(time.Second)
	if heard != 1 || last.TTL != 1 {
		t.Errorf("it has not arrived, or with more to live than what its way cost: %v", last)
	}
}

func TestAHostThatMovesHasOtherAddressesAndItsSockets(t *testing.T) {
	net := New(1)
	server, s := host(net.Internet(), "server", LinkConfig{Delay: 10 * time.Millisecond})
	var seen []netip.AddrPort
	s.Handle(func(_ time.Time, from netip.AddrPort, b []byte) { seen = append(seen, from); s.Send(from, b, 0) })
	home := must(net.Internet().AddRouter("home", cone, LinkConfig{}))
	cafe := must(net.Internet().AddRouter("cafe", cone, LinkConfig{}))
	if err := cafe.EnableIPv6(NATConfig{Mapping: weft.NoNAT, Filtering: apdf}); err != nil {
		t.Fatal(err)
	}
	ann, socket := host(home.Inside(), "ann", LinkConfig{})
	echoes := 0
	socket.Handle(func(time.Time, netip.AddrPort, []byte) { echoes++ })
	was := ann.Addr()
	socket.Send(at(server), []byte("1"), 0)
	net.Run(15 * time.Millisecond) // the echo is under way
	if err := ann.Move(cafe.Inside(), LinkConfig{}); err != nil {
		t.Fatal(err)
	}
	net.Run(time.Second)
	if echoes != 0 || ann.Addr() == was || ann.Segment() != cafe.Inside() {
		t.Errorf("%d echoes came to where it is no more; its address is %v", echoes, ann.Addr())
	}
	socket.Send(at(server), []byte("2"), 0)
	net.Run(time.Second)
	if echoes != 1 || len(seen) != 2 || seen[0].Addr() == seen[1].Addr() {
		t.Errorf("%d echoes; seen at %v", echoes, seen)
	}
	if err := ann.EnableIPv6(); err != nil || !ann.Addr6().IsValid() {
		t.Errorf("%v has no IPv6: %v", ann.Addr6(), err)
	}
	if err := ann.Move(home.Inside(), LinkConfig{}); err != nil || ann.Addr6().IsValid() {
		t.Errorf("it has IPv6 where there is none: %v, %v", ann.Addr6(), err)
	}
	if err := ann.Move(cafe.Inside(), LinkConfig{}); err != nil || !ann.Addr6().IsValid() {
		t.Errorf("it has no IPv6 again: %v, %v", ann.Addr6(), err)
	}
}

func TestIPv6PassesFirewallsUntranslatedOnceBothSidesHaveSent(t *testing.T) {
	net := New(1)
	firewall := NATConfig{Mapping: weft.NoNAT, Filtering: apdf}
	var hosts [2]*Host
	var sockets [2]*Socket
	heard := [2][]netip.AddrPort{}
	for i, name := range []string{"ann", "bob"} {
		outer := must(net.Internet().AddRouter(name+"'s carrier", cone, LinkConfig{}))
		inner := must(outer.Inside().AddRouter(name+"'s", cone, LinkConfig{}))
		h, s := host(inner.Inside(), name, LinkConfig{})
		if err := h.EnableIPv6(); err == nil {
			t.Error("there is IPv6 where no router knows it")
		}
		if err := inner.EnableIPv6(firewall); err == nil {
			t.Error("a router routes IPv6 that there is not")
		}
		for _, err := range []error{outer.EnableIPv6(firewall), inner.EnableIPv6(firewall), h.EnableIPv6()} {
			if err != nil {
				t.Fatal(err)
			}
		}
		s.Handle(func(_ time.Time, from netip.AddrPort, _ []byte) { heard[i] = append(heard[i], from) })
		hosts[i], sockets[i] = h, s
	}
	to := func(i int) netip.AddrPort { return netip.AddrPortFrom(hosts[i].Addr6(), 1000) }
	for range 2 {
		for i, s := range sockets {
			if err := s.Send(to(1-i), []byte("hello"), 0); err != nil {
				t.Fatal(err)
			}
			net.Run(time.Millisecond)
		}
	}
	if !slices.Equal(heard[0], []netip.AddrPort{to(1), to(1)}) || !slices.Equal(heard[1], []netip.AddrPort{to(0)}) {
		t.Errorf("ann heard %v, bob %v", heard[0], heard[1])
	}
}

func TestAFirewallForIPv4LeavesItsHostsTheirPublicAddresses(t *testing.T) {
	net := New(1)
	server, s := host(net.Internet(), "server", LinkConfig{})
	var seen netip.AddrPort
	s.Handle(func(_ time.Time, from netip.AddrPort, _ []byte) { seen = from })
	wall := must(net.Internet().AddRouter("wall", NATConfig{Mapping: weft.NoNAT, Filtering: apdf}, LinkConfig{}))
	ann, socket := host(wall.Inside(), "ann", LinkConfig{})
	heard := 0
	socket.Handle(func(time.Time, netip.AddrPort, []byte) { heard++ })
	s.Send(at(ann), []byte("unsolicited"), 0)
	net.Run(time.Second)
	socket.Send(at(server), []byte("hello"), 0)
	net.Run(time.Second)
	s.Send(seen, []byte("answer"), 0)
	net.Run(time.Second)
	if seen != at(ann) || heard != 1 {
		t.Errorf("%v was seen at %v, and heard %d", at(ann), seen, heard)
	}
}

func TestGuestsOfAnIsolatedNetworkMeetByHairpinOnly(t *testing.T) {
	for _, hairpin := range []bool{false, true} {
		net := New(1)
		server, s := host(net.Internet(), "server", LinkConfig{})
		hotel := must(net.Internet().AddRouter("hotel", NATConfig{Mapping: eim, Filtering: eif, Hairpin: hairpin}, LinkConfig{}))
		if err := hotel.Inside().SetIsolated(true); err != nil {
			t.Fatal(err)
		}
		ann, a := host(hotel.Inside(), "ann", LinkConfig{})
		bob, b := host(hotel.Inside(), "bob", LinkConfig{})
		var known netip.AddrPort
		s.Handle(func(_ time.Time, from netip.AddrPort, _ []byte) { known = from })
		heard := 0
		b.Handle(func(time.Time, netip.AddrPort, []byte) { heard++ })
		b.Send(at(server), []byte("where am I?"), 0)
		net.Run(time.Second)
		a.Send(at(bob), []byte("neighbour"), 0)
		net.Run(time.Second)
		if heard != 0 {
			t.Error("guests hear each other")
		}
		a.Send(known, []byte("outside"), 0)
		net.Run(time.Second)
		if (heard == 1) != hairpin {
			t.Errorf("hairpin %v: heard %d", hairpin, heard)
		}
		x, y := Sides(ann, bob)
		want := Never
		if hairpin {
			want = Plain
		}
		if way, why := Possible(x, y); way != want {
			t.Errorf("the oracle says %v, as %s", way, why)
		}
	}
}

func TestWhatCannotBeIsRefusedInASentence(t *testing.T) {
	net := New(1)
	inet := net.Internet()
	home := must(inet.AddRouter("home", cone, LinkConfig{}))
	ann, socket := host(home.Inside(), "ann", LinkConfig{})
	_, err := ann.Listen(1000)
	wants(t, err, "ann has a socket on port 1000 already")
	_, err = inet.AddHost("ann", LinkConfig{})
	wants(t, err, "two hosts or routers called ann")
	_, err = inet.AddHost("", LinkConfig{})
	wants(t, err, "needs a name")
	_, err = inet.AddHost("bob", LinkConfig{Loss: 2})
	wants(t, err, "between 0 and 1")
	_, err = inet.AddHost("bob", LinkConfig{Rate: math.NaN()})
	wants(t, err, "rate")
	_, err = inet.AddRouter("r", NATConfig{Mapping: eim, Filtering: eif, Public: home.NAT().Config().Public}, LinkConfig{})
	wants(t, err, "home has it")
	_, err = inet.AddRouter("r", NATConfig{}, LinkConfig{})
	wants(t, err, "r cannot be added: a NAT needs a mapping")
	wants(t, inet.SetIsolated(true), "the internet")
	wants(t, home.EnableIPv6(cone), "cannot translate IPv6")
	wants(t, ann.SetLink(LinkConfig{Delay: -1}), "delay")
	wants(t, socket.Send(netip.AddrPort{}, nil, 0), "nowhere to send to")
	wants(t, socket.Send(ap("[2001:db8::1]:1"), nil, 0), "ann has no IPv6 address")
	socket.Close()
	wants(t, socket.Send(ap("203.0.113.1:1"), nil, 0), "closed")
	must(ann.Listen(1000)) // its port is free again
}

func wants(t *testing.T, err error, sentence string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), sentence) {
		t.Errorf("%v; want a sentence with %q", err, sentence)
	}
}
