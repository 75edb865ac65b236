package engine

import (
	"weft"
)

// A DirectStream is a TCP connection to a peer: it sends datagrams, in order. It does not keep them after it has returned,
// and does not wait: what the connection cannot take soon is dropped, oldest first. direct.Conn is one.
type DirectStream interface {
	StreamSender
	// SendAhead sends one frame before the datagrams that wait.
	SendAhead(id weft.NodeID, frame []byte) error
}

// connected is what a way that is a TCP connection is gone by.
type connected struct{ to DirectStream }

// SetConnection says that a peer is reached by a TCP connection, a via of weft.DirectTCP, or with nil no longer.
func (e *Engine) SetConnection(id weft.NodeID, via weft.Via, to DirectStream) {
	e.mu.Lock()
	p := e.peers[id]
	if p == nil {
		e.mu.Unlock()
		return
	}
	w := e.way(p, via)
	if to == nil {
		w.tcp.Store(nil)
	} else {
		w.tcp.Store(&connected{to})
	}
	used := to != nil && p.route.Load() == w
	e.mu.Unlock()
	if used {
		e.control.post(post{peer: p, what: routed})
	}
}

// stream is the connection of a way.
func (w *way) stream() (DirectStream, error) {
	if c := w.tcp.Load(); c != nil {
		return c.to, nil
	}
	return nil, ErrNoWay
}

// connection finds a peer's connection by its via.
func (e *Engine) connection(id weft.NodeID, via weft.Via) (DirectStream, error) {
	e.mu.RLock()
	defer e.mu.RUnlock()
	if p := e.peers[id]; p != nil {
		if w := p.find(via); w != nil {
			return w.stream()
		}
	}
	return nil, ErrNoWay
}

// DeliverConnection takes datagrams that came by a TCP connection from a peer; they are valid during the call only, and its to
// change. They are worked on to the end by the goroutine that calls.
func (e *Engine) DeliverConnection(via weft.Via, src weft.NodeID, datagrams [][]byte) {
	o := e.opener()
	o.begin()
	for _, b := range datagrams {
		o.relayed(src, via, b)
	}
	o.end()
	e.putOpener(o)
}
