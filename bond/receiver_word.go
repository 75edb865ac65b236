package bond

// A claim is what the message says of its sender that Arrive is told of next.
type claim struct {
	kind claimKind
	path PathID
	name uint16
}

type claimKind uint8

const (
	noClaim claimKind = iota
	itsName           // of the path
	isAlone           // there is no bond
)

// A word is the latest that was said of whether there is a bond, by the order of sending.
type word struct {
	serial  uint32 // of the session in which it was said; 0: nothing was
	counter uint64
	alone   bool
}

// Named is told by which number the peer's Sender calls a path, from an Offer that came by it, before Arrive is told of the message. It is not
// believed of a message that is not the newest of its path: that was sent again, by another path than it names.
func (r *Receiver) Named(p PathID, id uint16) { r.claim = claim{itsName, p, id} }

// Alone is told that the peer has no bond (wire.InnerWithdrawal), before Arrive is told of the message that says so. What was sent after it goes by
// one path, and nobody sends it again: it is not waited for, and not told of, until a path is Named in what was sent later still.
func (r *Receiver) Alone() { r.claim = claim{kind: isAlone} }

// heed settles a claim, now that it is known which message made it.
func (r *Receiver) heed(c claim, i int, s *space, counter uint64) {
	if w := &r.word; s.serial > w.serial || s.serial == w.serial && counter >= w.counter {
		*w = word{s.serial, counter, c.kind == isAlone}
	}
	if n := &s.seen[i]; c.kind != itsName || c.path != r.routes[i].path || r.routes[i].serial > s.serial || n.some && counter < n.counter {
		return
	}
	for k := range r.nroutes {
		if r.routes[k].name == c.name {
			r.routes[k].name = 0 // it was that path
		}
	}
	r.routes[i].name = c.name
}

// alone reports whether a message was sent when there was no bond any more.
func (r *Receiver) alone(s *space, counter uint64) bool {
	w := &r.word
	return w.alone && (s.serial > w.serial || s.serial == w.serial && counter >= w.counter)
}
