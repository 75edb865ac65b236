package path

import (
	"slices"
	"time"

	"weft"
	"weft/wire"
)

// How long packets may be is found by pings of that length (RFC 8899, DPLPMTUD), of which the network and this machine
// are to make no fragments. All lengths are those of the overlay's packets, in bytes.
const (
	// AssumedMTU holds for a way until it is known better: an Ethernet's 1,500 bytes less IPv6 (40), UDP (8), a
	// relay's prefix (8) and WireGuard (32), in whole units of WireGuard's padding. What does not fit after all is
	// fragmented on the way.
	AssumedMTU = 1408
	// MaxMTU is the longest packet that any way carries: an IPv4 datagram's 65,535 bytes less what surrounds it.
	MaxMTU = (1<<16 - 1 - 20 - 8 - 8 - 32) &^ (mtuStep - 1)

	// mtuStep is how exactly the length is found: WireGuard pads to multiples of it (section 5.4.6 of its paper).
	mtuStep = 16
	// mtuTries is after how many probes without an answer a length does not fit (RFC 8899 section 5.1.2: MAX_PROBES).
	mtuTries = 3
	// mtuRaise is how long after a search a longer length is looked for (RFC 8899 section 5.1.1: PMTU_RAISE_TIMER), and mtuRaiseFirst
	// after the search that found it, each time four times as long: what was lost for another reason shall not be held to be too
	// long for ten minutes.
	mtuRaise      = 10 * time.Minute
	mtuRaiseFirst = 15 * time.Second
	// mtuConfirm is how often a length is asked again while data flows: as often as the round-trip time.
	mtuConfirm = HeartbeatReported
	// mtuProbes is how many lengths are asked at once.
	mtuProbes = 10
)

// underlayMTUs are lengths of underlay packets that are worth a guess: jumbo frames, FDDI's (RFC 1191 section 7.1),
// Ethernet, PPPoE, a cloud's, tunnels in tunnels, the least of IPv6, and what every host takes.
var underlayMTUs = [...]int{9000, 4352, 1500, 1492, 1460, 1420, 1360, 1280, 576}

// An MTU is the longest packet that is to be sent by a way.
type MTU struct {
	Via  weft.Via
	Size int
}

// A search is what is known of the length of packets that a pair carries. It asks for the longest; when that is not
// answered, or there is no time to wait for it, for all lengths that are likely; and then for those between the
// longest that was answered and the shortest that was not. What is known is asked again now and then, and when
// it is doubted a search goes on below.
type search struct {
	use   int // the longest that is to be sent; 0: nothing is known yet
	told  int // what the caller was told
	best  int // the longest that was answered in this search
	least int // the shortest that does not fit; 0: none

	probes []sized   // of this round, the longest first
	tries  int       // of this round that were begun
	closer bool      // it has been looked closely what fits below what does not
	until  time.Time // when the try ends; zero: nothing is under way
	ended  time.Time // the last search; zero: one is due
	higher time.Time // when more than fits was last found not to fit
	raises int       // how often more was looked for since what is used was found
	sent   uint64    // packets of data by then
}

// A sized is a probe of a length. Its transaction is the same in all tries, so that a late answer counts too.
type sized struct {
	id   wire.TxID
	size int
	over bool // there is no answer to wait for: it has come, or this machine could not send it
}

// overhead is what is around an overlay's packet on the underlay of a way, in bytes.
func overhead(via weft.Via) int {
	switch {
	case via.Method != weft.Direct:
		return 40 + 8 + wire.DataPrefix + 32
	case via.Addr.Addr().Is4():
		return 20 + 8 + 32
	}
	return 40 + 8 + 32
}

// pingPadding makes a ping as long as the WireGuard packet in which a packet of the overlay goes.
func pingPadding(size int) int {
	padded := (size + mtuStep - 1) &^ (mtuStep - 1)
	return max(padded+32-frameOverhead, 0)
}

// ladder are the lengths that are worth a guess, the longest first.
func ladder(via weft.Via, longest int) []int {
	list := []int{longest}
	for _, m := range underlayMTUs {
		if n := (m - overhead(via)) &^ (mtuStep - 1); n < list[len(list)-1] {
			list = append(list, n)
		}
	}
	return list[:min(len(list), mtuProbes)]
}

// pause is how long what was found is gone by before more is looked for.
func (s *search) pause() time.Duration {
	return min(mtuRaiseFirst<<(2*min(s.raises, 8)), mtuRaise)
}

// effective is the length to go by.
func (a *Agent) effective(p *pair) int {
	if p.mtu == nil || p.mtu.use == 0 {
		return min(AssumedMTU, a.cfg.MTU)
	}
	return p.mtu.use
}

// fit searches for the lengths of the pairs that matter: the one in use, and those that would take its place.
func (a *Agent) fit(now time.Time, out *Actions) {
	out.MTUs = out.MTUs[:0]
	if a.cfg.MTU == 0 {
		return
	}
	spare := a.standby()
	for _, p := range a.pairs {
		used := p == a.choice.pair
		if p.mtu == nil {
			if !used && !p.warm && (p != spare || !a.busy(now)) {
				continue
			}
			p.mtu = &search{}
		}
		s := p.mtu
		switch {
		case p.health.state == Failed && p.health.cause != blackHole:
			s.until, s.ended = time.Time{}, time.Time{}
		case p.health.state != Valid || !a.wanted || !s.until.IsZero():
		case s.ended.IsZero() && a.busy(now):
			a.seek(now, p, ladder(p.via, a.cfg.MTU))
		case s.ended.IsZero():
			a.seek(now, p, []int{a.cfg.MTU})
		case !a.busy(now):
		case s.least > 0 && a.due(now, s.higher.Add(s.pause())):
			s.raises++
			a.seek(now, p, ladder(p.via, a.cfg.MTU))
		case used && s.use > 0 && p.ledger != nil && p.ledger.sent != s.sent && a.due(now, s.ended.Add(mtuConfirm)):
			a.seek(now, p, []int{s.use})
		}
		if !s.until.IsZero() {
			a.search(now, p, out)
		}
		if size := a.effective(p); size != s.told && (used || s.told != 0) {
			s.told = size
			out.MTUs = append(out.MTUs, MTU{Via: p.via, Size: size})
		}
	}
}

// seek begins a search with these lengths, the longest first.
func (a *Agent) seek(now time.Time, p *pair, sizes []int) {
	s := p.mtu
	s.best, s.tries, s.closer, s.until, s.probes = 0, 0, false, now, s.probes[:0]
	if sizes[0] >= s.least {
		s.least = 0
	}
	a.ask(s, sizes)
}

// ask adds lengths to a round.
func (a *Agent) ask(s *search, sizes []int) {
	for _, n := range sizes {
		x := sized{size: n}
		a.cfg.Rand(x.id[:])
		s.probes = append(s.probes, x)
	}
}

// doubt has the length asked again that a pair goes by, because data was lost.
func (a *Agent) doubt(now time.Time, p *pair) {
	if a.cfg.MTU == 0 || p.health.state == Untested {
		return
	}
	if p.mtu == nil {
		p.mtu = &search{}
	}
	if p.mtu.until.IsZero() {
		a.seek(now, p, []int{a.effective(p)})
	}
}

// forgetSizes has all lengths searched anew: they may be others now. Until then, what was known holds.
func (a *Agent) forgetSizes() {
	for _, p := range a.pairs {
		if p.mtu != nil {
			p.mtu.until, p.mtu.ended = time.Time{}, time.Time{}
		}
	}
}

// alone reports whether the longest was asked and no other.
func (s *search) alone() bool { return len(s.probes) == 1 && s.best == 0 }

// widen has the shorter ones asked as well.
func (a *Agent) widen(p *pair) { a.ask(p.mtu, ladder(p.via, p.mtu.probes[0].size)[1:]) }

// waiting reports whether an answer is out that would tell something.
func (s *search) waiting() bool {
	return slices.ContainsFunc(s.probes, func(x sized) bool { return !x.over && x.size > s.best })
}

// search goes on with what is under way when an answer has come, or a try has ended without.
func (a *Agent) search(now time.Time, p *pair, out *Actions) {
	s := p.mtu
	if s.tries > 0 {
		if s.waiting() && !a.due(now, s.until) {
			return
		}
		if s.alone() {
			a.widen(p)
		} else if s.waiting() {
			a.settleFor(now, p)
		}
	}
	if s.tries == mtuTries || !s.waiting() {
		if a.conclude(now, p); s.until.IsZero() {
			return
		}
	}
	s.tries++
	s.until = now.Add(p.rtt.timeout())
	a.wake(s.until)
	for _, x := range s.probes {
		if !x.over && x.size > s.best {
			m := wire.Ping{Path: p.number, Tx: x.id, Padding: pingPadding(x.size)}
			out.Send = append(out.Send, Transmit{Via: p.via, Message: m, Whole: true})
		}
	}
}

// settleFor goes by what was answered when longer ones were not; but not before it has looked more closely: hosts that are
// told a length by ICMP go by it for ten minutes, and it should be the right one.
func (a *Agent) settleFor(now time.Time, p *pair) {
	s := p.mtu
	switch {
	case s.best == 0 || s.best >= a.effective(p):
	case s.closer:
		a.lower(now, p)
	default:
		s.closer = true
		least := s.least
		for _, x := range s.probes {
			if !x.over && x.size > s.best && (least == 0 || x.size < least) {
				least = x.size
			}
		}
		a.ask(s, between(s.best, least))
	}
}

// lower goes by a shorter length than before. A pair that lost data because of that may return.
func (a *Agent) lower(now time.Time, p *pair) {
	p.mtu.use, p.mtu.raises = p.mtu.best, 0
	if h := &p.health; h.state == Failed && h.cause == blackHole {
		if end := now.Add(exonerated); h.heldUntil.After(end) {
			h.heldUntil = end
		}
		p.probe.check = check{}
	}
}

// longer goes by a length that is no shorter than before.
func (s *search) longer(size int) {
	if size > s.use {
		s.raises = 0
	}
	s.use = size
}

// conclude ends a round, and begins the next if there is more to find out.
func (a *Agent) conclude(now time.Time, p *pair) {
	s := p.mtu
	for _, x := range s.probes {
		if !x.over && x.size > s.best && (s.least == 0 || x.size < s.least) {
			s.least, s.higher = x.size, now
		}
	}
	more := between(s.best, s.least)
	switch {
	case s.best == 0: // the pair carries nothing at all just now, or very little
		more = nil
	case s.best >= a.effective(p):
		s.longer(s.best)
	case s.closer || len(more) == 0:
		a.lower(now, p)
	}
	if len(more) > 0 {
		s.probes, s.tries, s.closer = s.probes[:0], 0, true
		a.ask(s, more)
		return
	}
	s.until, s.ended = time.Time{}, now
	if p.ledger != nil {
		s.sent = p.ledger.sent
	}
}

// between are lengths that part the span between one that fits and one that does not, the longest first.
func between(best, least int) (list []int) {
	first := best/mtuStep + 1
	n := (least+mtuStep-1)/mtuStep - first // multiples of mtuStep that lie between
	parts := min(n, mtuProbes)
	for i := parts; i > 0; i-- {
		list = append(list, (first-1+i*(n+1)/(parts+1))*mtuStep)
	}
	return list
}

// fits takes the answer to a probe, and is false if it is to none.
func (a *Agent) fits(now time.Time, p *pair, id wire.TxID) bool {
	s := p.mtu
	if s == nil || s.until.IsZero() {
		return false
	}
	for i := range s.probes {
		x := &s.probes[i]
		if x.id != id || x.over {
			continue
		}
		x.over, p.heard = true, now
		if s.best = max(s.best, x.size); s.best > a.effective(p) {
			s.longer(s.best)
		}
		return true
	}
	return false
}

// TooLong says that this machine could not send a ping whole that Poll asked for: its interface is too narrow.
func (a *Agent) TooLong(now time.Time, via weft.Via, m wire.Ping) {
	p := a.find(canonical(via))
	if p == nil || p.mtu == nil {
		return
	}
	s := p.mtu
	for i := range s.probes {
		x := &s.probes[i]
		if x.id != m.Tx || x.over {
			continue
		}
		if x.over = true; s.least == 0 || x.size < s.least {
			s.least, s.higher = x.size, now
		}
	}
}
