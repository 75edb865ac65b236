package gather

import (
	"net/netip"
	"slices"
	"time"

	"weft"
	"weft/stun"
)

const (
	// recheckAfter is how often every server is asked again: a NAT may have moved the mapping. It keeps the
	// mapping alive too, below the 30 s after which many NATs drop one (RFC 4787 section 4.3 asks for two
	// minutes, and measures less in the field).
	recheckAfter = 25 * time.Second
	// retryAfter is how soon a server is asked again that did not answer.
	retryAfter = 5 * time.Second
	// stunRTO and stunTries spread one question over 1.5 s: a server that is there answers in its first tries,
	// and one that UDP does not reach should be known for it before a person asks why.
	stunRTO   = 100 * time.Millisecond
	stunTries = 4
)

// Reflexive keeps asking STUN servers what they see of one socket per address family. It is pure: the caller
// sends what Poll returns and hands in what comes. One goroutine at a time may use it; its zero value has no
// servers.
type Reflexive struct {
	servers []*server
}

type server struct {
	addr   netip.AddrPort
	tx     *stun.Transaction
	next   time.Time // of the next question, when none is under way
	result stun.Result
	known  bool
}

// SetServers replaces the servers. What is known of those that stay is kept.
func (r *Reflexive) SetServers(now time.Time, addrs []netip.AddrPort) {
	var list []*server
	for _, a := range addrs {
		i := slices.IndexFunc(r.servers, func(s *server) bool { return s.addr == a })
		if i >= 0 {
			list = append(list, r.servers[i])
			continue
		}
		list = append(list, &server{addr: a, next: now})
	}
	r.servers = list
}

// Recheck asks everybody now: the network changed.
func (r *Reflexive) Recheck(now time.Time) {
	for _, s := range r.servers {
		s.tx, s.next = nil, now
	}
}

// Poll sends what is due and returns when to poll again; zero is never. It also reports whether what is known
// changed, since a server may have fallen silent.
func (r *Reflexive) Poll(now time.Time, send func(to netip.AddrPort, packet []byte)) (next time.Time, changed bool) {
	for _, s := range r.servers {
		if s.tx == nil && !now.Before(s.next) {
			s.tx = stun.NewTransaction(now, s.addr, stun.TransactionConfig{RTO: stunRTO, Rc: stunTries, Rm: stunTries})
		}
		due := s.next
		if s.tx != nil {
			packet, at, done := s.tx.Poll(now)
			if packet != nil {
				send(s.addr, packet)
			}
			due = at
			if done {
				changed = changed || s.known
				s.tx, s.known, s.next = nil, false, now.Add(retryAfter)
				due = s.next
			}
		}
		if next.IsZero() || due.Before(next) {
			next = due
		}
	}
	return next, changed
}

// Handle takes a STUN datagram. It reports whether that was an answer to one of its questions, and whether
// what is known changed by it.
func (r *Reflexive) Handle(now time.Time, packet []byte, from netip.AddrPort) (mine, changed bool) {
	for _, s := range r.servers {
		if s.tx == nil {
			continue
		}
		result, ok := s.tx.Handle(now, packet, from)
		if !ok {
			continue
		}
		s.tx, s.next = nil, now.Add(recheckAfter)
		good := result.Err() == nil && result.Mapped.IsValid()
		changed = good != s.known || good && s.result.Mapped != result.Mapped
		s.known, s.result = good, result
		return true, changed
	}
	return false, false
}

// Candidates are the addresses that servers see, without repetition.
func (r *Reflexive) Candidates() []weft.Candidate {
	var out []weft.Candidate
	for _, s := range r.servers {
		c := weft.Candidate{Addr: s.result.Mapped, Kind: weft.ServerReflexive}
		if s.known && usable(c.Addr.Addr()) && !slices.Contains(out, c) {
			out = append(out, c)
		}
	}
	return out
}

// Mapping is what the answers together say of the NAT, as far as they differ in address and port.
func (r *Reflexive) Mapping(local ...netip.AddrPort) weft.Mapping {
	var seen []stun.Observation
	for _, s := range r.servers {
		if s.known && s.addr.Addr().Is4() {
			seen = append(seen, stun.Observation{Server: s.addr, Mapped: s.result.Mapped})
		}
	}
	return stun.ClassifyMapping(seen, local...)
}
