package underlay

import (
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"weft"
)

// A visit is what one call of Config.Receive brought.
type visit struct {
	at       time.Time
	links    []weft.LinkID // whose sockets had something
	messages int
}

// visited has what comes lie for so long, and tells of every visit.
func visited(t *testing.T, lie time.Duration) (*Sockets, func() []visit) {
	t.Helper()
	var mu sync.Mutex
	var all []visit
	s, err := Open(Config{Receive: func(in *Incoming) {
		v := visit{at: time.Now()}
		for reads := in.Next(); len(reads) > 0; reads = in.Next() {
			link, six := in.Link()
			if six {
				t.Error("a socket of IPv4 is said to be one of IPv6")
			}
			v.links = append(v.links, link)
			for _, m := range reads {
				v.messages += len(m.Data) / max(1, m.Segment)
			}
			in.MayLie(lie)
		}
		mu.Lock()
		all = append(all, v)
		mu.Unlock()
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	s.Start()
	return s, func() []visit {
		mu.Lock()
		defer mu.Unlock()
		list := all
		all = nil
		return list
	}
}

func TestSocketsToWhichMessagesComeCloselyAreReadInOneGo(t *testing.T) {
	const lie, pause, sockets, messages = 5 * time.Millisecond, time.Millisecond, 4, 2000
	s, visits := visited(t, lie)
	from, _ := listener(t, "127.0.0.1")
	var to []netip.AddrPort
	for range sockets {
		link, addr := spareOf(t, s)
		s.Carry(link)
		to = append(to, addr)
	}
	for i := range messages {
		from.WriteToUDPAddrPort([]byte("dense"), to[i%sockets])
		time.Sleep(pause)
	}
	wait := time.Now()
	var all []visit
	came, together := 0, 0
	for came < messages {
		for _, v := range visits() {
			all = append(all, v)
			came += v.messages
			if len(v.links) == sockets {
				together++
			}
		}
		if time.Since(wait) > patience {
			t.Fatalf("%d of %d messages came", came, messages)
		}
		time.Sleep(pause)
	}
	if most := messages * 3 / 5; len(all) > most {
		t.Errorf("%d messages in %d visits, not in at most %d", messages, len(all), most)
	}
	if least := int((messages*pause - steady*lie) / lie / 4); together < least {
		t.Errorf("%d of %d visits were to all %d sockets, not at least %d", together, len(all), sockets, least)
	}
	// One that comes after a pause is read before those have come that would lie with it.
	least := time.Hour
	for i := range 2 * sockets {
		time.Sleep((quiet + 2) * lie)
		visits()
		sent := time.Now()
		from.WriteToUDPAddrPort([]byte("seldom"), to[i%sockets])
		var v []visit
		for ; len(v) == 0; v = visits() {
			if time.Since(sent) > patience {
				t.Fatal("a message after a pause is not read")
			}
			time.Sleep(pause)
		}
		least = min(least, v[0].at.Sub(sent))
	}
	if least > lie/2 {
		t.Errorf("a message after a pause was read after %v at the least", least)
	}
}

// Sockets come and go while others are read in rounds, and who goes the rounds goes, too: nobody is forgotten, and everything ends.
func TestNoSocketIsForgottenWhereSocketsComeAndGo(t *testing.T) {
	const lie, pause = time.Millisecond, 500 * time.Microsecond
	s, visits := visited(t, lie)
	from, _ := listener(t, "127.0.0.1")
	type spare struct {
		link weft.LinkID
		addr netip.AddrPort
	}
	var open []spare
	heard := map[weft.LinkID]bool{}
	for turn := range 10 {
		for len(open) < 4 {
			link, addr := spareOf(t, s)
			s.Carry(link)
			open = append(open, spare{link, addr})
		}
		for range 2 * steady * lie / pause {
			for _, x := range open {
				from.WriteToUDPAddrPort([]byte("dense"), x.addr)
			}
			time.Sleep(pause)
		}
		if turn%3 == 0 { // a pause, after which all are waited for alone
			time.Sleep((quiet + 2) * lie)
		}
		visits()
		clear(heard)
		began := time.Now()
		for len(heard) < len(open) {
			for _, x := range open {
				from.WriteToUDPAddrPort([]byte("there?"), x.addr)
			}
			time.Sleep(pause)
			for _, v := range visits() {
				for _, link := range v.links {
					heard[link] = true
				}
			}
			if time.Since(began) > patience {
				t.Fatalf("turn %d: of %d sockets %v are read", turn, len(open), heard)
			}
		}
		gone := turn % len(open)
		s.CloseSpare(open[gone].link)
		open = append(open[:gone], open[gone+1:]...)
	}
	ended := make(chan struct{})
	go func() {
		s.Close()
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(patience):
		t.Fatal("the readers do not end")
	}
}

func TestWhatIsReadInRoundsCountsAsUnreadUntilItIsWorkedOn(t *testing.T) {
	const lie, pause = 5 * time.Millisecond, 500 * time.Microsecond
	type look struct{ own, others bool }
	looks := make(chan look, 1<<14)
	var s *Sockets
	var links [2]weft.LinkID
	cfg := Config{Receive: func(in *Incoming) {
		n := 0
		var of weft.LinkID
		for reads := in.Next(); len(reads) > 0; reads = in.Next() {
			of, _ = in.Link()
			in.MayLie(lie)
			n++
			other := links[0]
			if of == other {
				other = links[1]
			}
			if n == 1 {
				looks <- look{s.Unread(of, false, true), s.Unread(other, false, true)}
			}
		}
		if n == 2 && s.find(of).four[0].working.Load() {
			t.Error("what was worked on to the end counts as being worked on")
		}
	}}
	var err error
	if s, err = Open(cfg); err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	from, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer from.Close()
	var to [2]netip.AddrPort
	for i := range links {
		links[i], to[i] = spareOf(t, s)
		s.Carry(links[i])
	}
	s.Start()
	unread := 0
	for range 2 * steady * lie / pause {
		for _, addr := range to {
			from.WriteToUDPAddrPort([]byte("dense"), addr)
		}
		time.Sleep(pause)
	}
	for len(looks) > 0 {
		if x := <-looks; x.others {
			unread++
		}
	}
	if unread == 0 {
		t.Error("while one socket's messages are worked on, the other's never count as unread")
	}
}

// A page is a few bursts, a round trip after each other: to have what it consists of lie would make each round trip longer.
func TestAShortExchangeIsNotHeldUp(t *testing.T) {
	const lie, roundTrip, bursts, each = 5 * time.Millisecond, 40 * time.Millisecond, 10, 40
	s, visits := visited(t, lie)
	from, _ := listener(t, "127.0.0.1")
	link, to := spareOf(t, s)
	s.Carry(link)
	held := 0
	for range bursts {
		for range each {
			sent := time.Now()
			from.WriteToUDPAddrPort([]byte("page"), to)
			time.Sleep(roundTrip / 2 / each)
			for _, v := range visits() {
				if v.at.Sub(sent) > lie/2 {
					held++
				}
			}
		}
		time.Sleep(roundTrip / 2)
	}
	if most := bursts * each / 10; held > most {
		t.Errorf("%d of %d messages were read late", held, bursts*each)
	}
}
