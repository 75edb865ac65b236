package wireguard

// A Window remembers which counters of a session have come (section 5.4.6, by the method of RFC 6479: a ring of
// words, of which those passed over are cleared, so that nothing is ever shifted). The zero value has seen none.
// One goroutine at a time may use it.
type Window struct {
	next uint64 // one more than the largest that has come
	ring [windowWords]uint64
}

const (
	wordBits    = 64
	windowWords = 128
	// WindowSize is how far behind the largest counter one may come: the ring less the word that is being filled.
	WindowSize = (windowWords - 1) * wordBits
)

// Check reports whether a counter would be taken.
func (w *Window) Check(counter uint64) bool {
	switch {
	case counter >= RejectAfterMessages:
		return false
	case counter >= w.next:
		return true
	case w.next-counter > WindowSize:
		return false
	}
	return w.ring[counter/wordBits%windowWords]&(1<<(counter%wordBits)) == 0
}

// Take marks a counter as come, and reports whether it is new.
func (w *Window) Take(counter uint64) bool {
	if !w.Check(counter) {
		return false
	}
	word := counter / wordBits
	if counter >= w.next {
		if w.next > 0 {
			last := (w.next - 1) / wordBits
			for i := uint64(1); i <= min(word-last, windowWords); i++ {
				w.ring[(last+i)%windowWords] = 0
			}
		}
		w.next = counter + 1
	}
	w.ring[word%windowWords] |= 1 << (counter % wordBits)
	return true
}
