package sim

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"weft"
	"weft/lab/scenario"
	"weft/lab/vnet"
)

// begun is a world that has run for a while.
func begun(t *testing.T, text string, d time.Duration) *world {
	t.Helper()
	s, err := scenario.Parse("test", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	w, err := newWorld(s, scenario.Options{Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	w.net.Run(d)
	return w
}

func TestWhileALinkIsCutNothingArrivesAndTheMachineSeesIt(t *testing.T) {
	for _, name := range []string{"ann", "home-a"} {
		w := begun(t, homes+`flow bob ann every=100ms start=2s
at 10s down `+name+`
at 13s up `+name+"\n", 20*time.Second)
		w.history.End = w.elapsed()
		w.noteFlows()
		if f := w.history.Results()[0]; f.Lost < 30 || f.Lost > 45 {
			t.Errorf("with %s down for 3 s, %d of %d packets are lost, ten a second", name, f.Lost, f.Sent)
		}
		log := w.machine("ann").log.String()
		if saw := strings.Count(log, "this machine's network changed"); saw != map[string]int{"ann": 2, "home-a": 0}[name] {
			t.Errorf("ann saw her network change %d times when the link of %s was cut and mended:\n%s", saw, name, log)
		}
	}
}

func TestWhoMovesHasAnotherAddressAndAnotherWayToTheInternet(t *testing.T) {
	w := begun(t, homes+`router far on=internet nat=EIM-EIF delay=70ms
at 10s readdress ann
at 20s move ann to far
`, 5*time.Second)
	ann := w.machine("ann")
	first := ann.host.Addr()
	if d, up := w.leg(ann); d != 5*time.Millisecond || !up {
		t.Errorf("her way to the internet takes %v (up: %v)", d, up)
	}
	w.net.Run(10 * time.Second)
	second := ann.host.Addr()
	w.net.Run(10 * time.Second)
	if d, _ := w.leg(ann); d != 70*time.Millisecond {
		t.Errorf("after she moved, her way to the internet takes %v", d)
	}
	if third := ann.host.Addr(); first == second || second == third {
		t.Errorf("her addresses are %v, %v, %v", first, second, third)
	}
	if saw := strings.Count(ann.log.String(), "this machine's network changed"); saw != 2 {
		t.Errorf("she saw her network change %d times", saw)
	}
}

func TestTheServerTellsWhoIsThereAndWhoIsNot(t *testing.T) {
	w := begun(t, homes+"at 5s stop bob\nat 9s start bob\n", 4*time.Second)
	bob := w.nodes[1]
	online := func() bool { return w.nodes[0].peer(bob.id).said.online }
	if !online() {
		t.Error("bob is there, and ann was not told")
	}
	w.net.Run(3 * time.Second)
	if online() {
		t.Error("bob has gone, and ann was not told")
	}
	w.net.Run(4 * time.Second)
	if !online() {
		t.Error("bob is back, and ann was not told")
	}
}

func TestDataIsTakenOnlyFromWhereThePeerIsKnownToBe(t *testing.T) {
	w := begun(t, `server hub on=internet
host ann on=internet
host bob on=internet
flow ann bob every=1s
`, 3500*time.Millisecond)
	f := w.flows[0]
	if f.hist.Arrived[3] == 0 {
		t.Fatal("nothing arrives at all")
	}
	f.hist.Arrived[3] = 0
	stranger, err := w.net.Internet().AddHost("stranger", vnet.LinkConfig{})
	if err != nil {
		t.Fatal(err)
	}
	send := func(host *vnet.Host, port uint16) {
		s, err := host.Listen(port)
		if err != nil {
			t.Fatal(err)
		}
		var b [dataHeader]byte
		b[0] = dataType
		binary.BigEndian.PutUint32(b[4:], uint32(w.nodes[0].id))
		binary.BigEndian.PutUint32(b[12:], 3)
		if err := s.Send(netip.AddrPortFrom(w.machine("bob").host.Addr(), nodePort), b[:], 0); err != nil {
			t.Fatal(err)
		}
		w.net.Run(200 * time.Millisecond)
	}
	if send(stranger, 0); f.hist.Arrived[3] != 0 {
		t.Error("what a stranger sends is taken for the peer's")
	}
	w.nodes[0].links[0].socket.Close()
	if send(w.machine("ann").host, nodePort); f.hist.Arrived[3] == 0 {
		t.Error("what comes from the peer's address is not taken")
	}
}

func TestARouterHasTheAddressesThatItChose(t *testing.T) {
	w := begun(t, `router any on=internet nat=EIM-EIF pool=3
router inner on=fixed nat=EIM-EIF
router fixed on=internet nat=EIM-EIF public=203.0.113.1,203.0.113.3
server hub on=internet
host ann on=inner
host bob on=any
expect ann bob direct within 5s
`, 5*time.Second)
	want := []netip.Addr{netip.MustParseAddr("203.0.113.1"), netip.MustParseAddr("203.0.113.3")}
	if got := w.routers["fixed"].NAT().Config().Public; !slices.Equal(got, want) {
		t.Errorf("fixed has %v", got)
	}
	if got := w.routers["any"].NAT().Config().Public; len(got) != 3 || slices.Contains(got, want[0]) || slices.Contains(got, want[1]) {
		t.Errorf("any has %v", got)
	}
	if path := w.history.At(w.elapsed(), "ann", "bob"); path != weft.PathDirect {
		t.Errorf("ann and bob are on %v", path)
	}
}
