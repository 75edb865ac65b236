package vnet

import (
	"net/netip"
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

func TestAPacketCrossesTwoNATsAndItsEchoComesBack(t *testing.T) {
	net := New(1)
	server := must(net.Internet().AddHost("server", LinkConfig{Delay: 10 * time.Millisecond}))
	s := must(server.Listen(3478))
	echo(s)
	c := NATConfig{Mapping: weft.EndpointIndependentMapping, Filtering: weft.AddressAndPortDependentFiltering}
	carrier := must(net.Internet().AddRouter("carrier", c, LinkConfig{Delay: 5 * time.Millisecond}))
	home := must(carrier.Inside().AddRouter("home", c, LinkConfig{Delay: time.Millisecond}))
	ann := must(home.Inside().AddHost("ann", LinkConfig{}))
	socket := must(ann.Listen(0))
	var got string
	var at time.Time
	socket.Handle(func(now time.Time, from netip.AddrPort, b []byte) { got, at = string(b), now })
	net.Tap(func(e Event) { t.Log(e) })
	if err := socket.Send(netip.AddrPortFrom(server.Addr(), 3478), []byte("hello"), 0); err != nil {
		t.Fatal(err)
	}
	net.Run(time.Second)
	if got != "hello" {
		t.Fatalf("the echo was %q", got)
	}
	if rtt := at.Sub(Epoch); rtt != 32*time.Millisecond {
		t.Errorf("the round trip took %v", rtt)
	}
}
