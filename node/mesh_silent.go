package node

import (
	"time"

	"weft"
)

// Silent hears that data by one of the ways of a peer's bond does not arrive. It is called from the engine's goroutines, with
// locks held: the mesh looks at it when it comes round to it.
func (me *mesh) Silent(id weft.NodeID, via weft.Via, reason string) {
	go me.post(func(now time.Time) {
		if p := me.peers[id]; p != nil {
			p.agent.Silent(now, via, reason)
			p.due = true
		}
	})
}
