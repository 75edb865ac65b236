package engine

import "weft"

// LinkPort is the UDP port of a link's sockets: that of the shared ones, unless another program has it there; 0 if the
// link has no sockets.
func (e *Engine) LinkPort(link weft.LinkID) uint16 { return e.sockets.LinkPort(link) }

// OpenSocketsOn is OpenSockets with sockets that leave by the interface of a link.
func (e *Engine) OpenSocketsOn(link weft.LinkID, n int, v6 bool) ([]weft.LinkID, []uint16, error) {
	return e.sockets.SparesOn(link, n, v6)
}
