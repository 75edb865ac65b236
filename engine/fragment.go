package engine

// fragments seals the fragments of a packet that is too long for the way and may be fragmented: that is a router's duty
// (RFC 791 section 3.2). Fragments of what it would become on the underlay are lost where nobody says how narrow it is.
func (b *burst) fragments(s *session, l lane, most int) (packets, bytes int) {
	for piece := b.cut.Next(); piece != nil; piece = b.cut.Next() {
		n := b.seal(s, l, piece, most)
		if n == 0 {
			break
		}
		packets, bytes = packets+1, bytes+n
	}
	return packets, bytes
}
