package host

// Looks is how often something that is not ready is looked at again before its thread waits, where that pays: others have their turn
// between (LetOthers), and waking up costs more than a look.
const Looks = 8

// Patience is how often a reader that finds nothing shall look again before it waits. In a flow as fast as the machine the next
// packet comes while it looks, two times in three. In one that is paced by a line it comes when it comes, looking finds one in four, and eight
// looks at each packet were up to half of what a node did. So who found little looks once, and every fourth time, which is how it learns when
// that changes.
// The zero value looks [Looks] times. It is one goroutine's.
type Patience struct {
	missing int   // of 1<<patienceBits: the share of late that looking did not find, of the last dozen or two
	waits   uint8 // since little was found
}

const (
	// patienceBits weighs each time with a sixteenth.
	patienceBits, patienceWeight = 16, 4
	// patienceMost lies between both kinds of flows: looking eight times misses 0.35 and 0.75 to 0.8, looking once 0.55 and 0.93.
	patienceMost = 11 << (patienceBits - 4)
	// seldom is how many waits one look is for, where little is found: it is a thread's turn that others wait for, too.
	seldom = 4
)

// Looks is how often to look again before this wait. Found or Missed is for a wait that had a look.
func (p *Patience) Looks() int {
	if p.missing <= patienceMost {
		return Looks
	}
	if p.waits++; p.waits%seldom != 0 {
		return 0
	}
	return 1
}

// Found is told that looking again found something.
func (p *Patience) Found() { p.missing -= p.missing >> patienceWeight }

// Missed is told that it did not.
func (p *Patience) Missed() { p.missing += (1<<patienceBits - p.missing) >> patienceWeight }
