package sim

import (
	"bytes"
	"time"

	"weft"
)

// A stream is a node's to one relay: TCP to port 443, which every network lets out.
type stream struct {
	n     *node
	relay *relayServer
	up    bool
	life  int // grows with every stream: of an earlier one, nothing arrives
	tries int
	// When the last frame arrives, each way: they stay in order.
	lastUp, lastDown time.Duration
}

// dial brings it up.
func (s *stream) dial(now time.Time) {
	s.life++
	life, w := s.life, s.n.w
	delay, up := w.way(s.n.m, s.relay.m)
	w.net.After(2*handshakes*delay, func(now time.Time) {
		if s.life != life || !s.n.on() {
			return
		}
		if _, still := w.way(s.n.m, s.relay.m); up && still && s.relay.on {
			s.up, s.tries = true, 0
			s.relay.streams[s.n.id] = s
			s.n.log("stream to the relay %s is up", s.relay.m.spec.Name)
			s.n.relaysChanged(now)
			s.n.work(now)
			return
		}
		s.redial(now)
	})
}

// redial tries again after a while.
func (s *stream) redial(now time.Time) {
	life := s.life
	wait := min(retryFirst<<min(s.tries, 10), retryLast)
	s.tries++
	s.n.w.net.After(wait, func(now time.Time) {
		if s.life == life && s.n.on() {
			s.dial(now)
		}
	})
}

// close ends it from the node's side.
func (s *stream) close() {
	s.up = false
	s.life++
	if s.relay.streams[s.n.id] == s {
		delete(s.relay.streams, s.n.id)
	}
}

// broke is what a change of the node's network does: what is sent is swallowed, until the daemon has noticed.
func (s *stream) broke(now time.Time) {
	if s.relay.streams[s.n.id] == s {
		delete(s.relay.streams, s.n.id)
	}
	s.life++
	life := s.life
	s.n.w.net.After(noticed, func(now time.Time) {
		if s.life == life && s.n.on() {
			s.ended(now)
		}
	})
}

// ended is the end of it, as the node sees it.
func (s *stream) ended(now time.Time) {
	s.close()
	s.n.log("stream to the relay %s has ended", s.relay.m.spec.Name)
	s.n.relaysChanged(now)
	s.redial(now)
	s.n.work(now)
}

// send takes a datagram for a node to the relay.
func (s *stream) send(to weft.NodeID, b []byte, what string) {
	if s.relay.streams[s.n.id] != s {
		return // it is dead, and the daemon does not know it yet
	}
	b = bytes.Clone(b)
	life := s.life
	s.n.w.carry(s.n.m, s.relay.m, &s.lastUp, what, func(now time.Time) {
		if s.life == life && s.relay.on {
			s.relay.fromStream(now, s.n.id, to, b, what)
		}
	})
}

// deliver takes a datagram from the relay to the node.
func (s *stream) deliver(src weft.NodeID, b []byte, what string) {
	b = bytes.Clone(b)
	life := s.life
	s.n.w.carry(s.relay.m, s.n.m, &s.lastDown, what, func(now time.Time) {
		if s.life == life {
			s.n.relayed(now, weft.Via{Method: weft.RelayStream, Relay: s.relay.id}, src, b)
		}
	})
}

// carry has a frame arrive in order by a stream.
func (w *world) carry(from, to *machine, last *time.Duration, what string, arrive func(now time.Time)) {
	if w.trace != nil {
		w.trace.stream(from, to, what)
	}
	delay, _ := w.way(from, to)
	deadline := w.elapsed() + patience
	*last = max(*last, w.elapsed()+delay)
	var try func(now time.Time)
	try = func(now time.Time) {
		_, up := w.way(from, to)
		switch {
		case w.elapsed() < *last && w.elapsed() < deadline: // an earlier one is late
			w.net.After(min(resend, *last-w.elapsed()), try)
		case up:
			if w.trace != nil {
				w.trace.streamed(from, to, what)
			}
			arrive(now)
		case w.elapsed() < deadline:
			*last = max(*last, w.elapsed()+resend)
			w.net.After(resend, try)
		}
	}
	w.net.After(*last-w.elapsed(), try)
}
