package underlay

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"weft"
	"weft/host"
)

const (
	// steady is for how long messages have to come without a pause before a socket is read in rounds, in times for which they may lie: some round
	// trips, so that a short exchange, in which each one counts, is over before.
	steady = 128
	// closely is how soon after the last one a message then has to come, in the same times; farther is it while others are read in rounds, to
	// which one more socket is one more system call.
	closely, farther = 2, 8
	// quiet is how many such times without a message are a pause, after which a socket is waited for again.
	quiet = 16
)

// A reading is the reading of one socket.
type reading struct {
	x      *socket
	reader *host.UDPReader
	in     Incoming // what its goroutine gives to Config.Receive

	lie   time.Duration // how long what comes next may lie; 0: not at all
	found time.Time     // when something came last
	since time.Time     // when the last pause ended
	err   error

	back chan []*reading // gives it back to its own goroutine, which goes the rounds of these if there are any
}

// Incoming is what was received: what one socket had, or several that are read in turn.
type Incoming struct {
	list []*reading
	at   int
	now  time.Time
	of   *reading       // whose messages are being worked on
	read []host.UDPRead // of the first, already
}

// Next are the messages of the next socket, valid until it is called again, and the caller's to change. There are no more sockets where
// there are no messages.
func (in *Incoming) Next() []host.UDPRead {
	if in.of != nil {
		in.of.x.working.Store(false)
		in.of = nil
	}
	for in.at < len(in.list) {
		r := in.list[in.at]
		in.at++
		reads := in.read
		in.read = nil
		r.x.working.Store(true)
		if reads == nil {
			reads, r.err = r.reader.TryRead()
			if len(reads) > 0 {
				r.found = in.now
			}
		}
		if len(reads) > 0 {
			in.of, r.lie = r, 0
			return reads
		}
		r.x.working.Store(false)
	}
	return nil
}

// Link is the link of the socket that Next was about, and whether it is one of IPv6.
func (in *Incoming) Link() (id weft.LinkID, six bool) { return in.of.x.link.ID, in.of.x.six }

// MayLie says for how long what comes next to that socket may lie there, if it comes soon: a wake-up that takes several messages, and several
// sockets', costs hardly more than one that takes one. Zero, which it is until it is called: it is read when it comes.
func (in *Incoming) MayLie(d time.Duration) { in.of.lie = d }

// rounds are gone by one of the goroutines of sockets to which messages come closely, for all of them: it sleeps for as long as messages
// may lie and then reads every socket, while the others wait for theirs to be given back.
type rounds struct {
	going atomic.Bool
	mu    sync.Mutex
	asked []*reading // to be read in rounds, too
}

// heavy reads batches.
func (s *Sockets) heavy(x *socket) {
	r := &reading{x: x, reader: host.NewUDPReader(x.batch.Load()), back: make(chan []*reading, 1)}
	defer r.reader.Close()
	self := []*reading{r}
	for {
		reads, err := r.reader.Read()
		if err != nil {
			if !s.again(x, err) {
				return
			}
			continue
		}
		r.in = Incoming{list: self, read: reads}
		s.cfg.Receive(&r.in)
		r.in.Next() // if it was not looked at to the end
		if r.lie > 0 && !r.reader.More() && r.closely(time.Now(), s.rounds.going.Load()) {
			s.join(r)
			r.since = time.Now()
		}
	}
}

// closely reports whether messages come so closely, and have for so long, that the socket is to be read in rounds.
func (r *reading) closely(now time.Time, going bool) bool {
	pause, most := now.Sub(r.found), closely*r.lie
	r.found = now
	if going {
		most = farther * r.lie
	}
	if pause >= quiet*r.lie {
		r.since = now
	}
	return pause < most && now.Sub(r.since) >= steady*r.lie
}

// fits reports whether the socket can be read in rounds: not if it brings more than one read takes.
func (r *reading) fits() bool { return r.err == nil && !r.reader.More() && r.lie > 0 }

// join has a socket read in rounds until it is to be waited for again.
func (s *Sockets) join(r *reading) {
	m := &s.rounds
	m.mu.Lock()
	list := []*reading{r}
	if m.going.Load() {
		m.asked = append(m.asked, r)
		m.mu.Unlock()
		if list = <-r.back; list == nil {
			return
		}
	} else {
		m.going.Store(true)
		m.mu.Unlock()
	}
	s.round(r, list)
}

// round goes the rounds, by the goroutine of one of the sockets, which are in the list.
func (s *Sockets) round(own *reading, list []*reading) {
	m := &s.rounds
	for {
		lie := own.lie
		for _, r := range list {
			lie = min(lie, r.lie)
		}
		host.Doze(lie)
		m.mu.Lock()
		list = append(list, m.asked...)
		m.asked = m.asked[:0]
		m.mu.Unlock()

		own.in = Incoming{list: list, now: time.Now()}
		s.cfg.Receive(&own.in)
		for own.in.Next() != nil { // if it was not looked at to the end
		}

		now := own.in.now
		list = slices.DeleteFunc(list, func(r *reading) bool {
			if r == own || r.fits() && now.Sub(r.found) < quiet*r.lie {
				return false
			}
			r.back <- nil
			return true
		})
		if own.fits() && (len(list) > 1 || now.Sub(own.found) < quiet*own.lie) {
			continue
		}
		list = slices.DeleteFunc(list, func(r *reading) bool { return r == own })
		m.mu.Lock()
		list = append(list, m.asked...)
		m.asked = m.asked[:0]
		if len(list) == 0 {
			m.going.Store(false)
		}
		m.mu.Unlock()
		if len(list) > 0 {
			list[0].back <- list
		}
		return
	}
}
