// Package bond makes one network of many paths to a peer. It is pure: it has no sockets and no clock. A [Sender] says by which path a
// packet goes and when; a [Receiver] puts what comes in order and tells the Sender. Nothing is added to a packet: WireGuard's
// counter is its number, and the path is what it came by.
//
// # Measuring
//
// The Sender remembers each message: by which paths it went, when, and what was known then (ledger, flights). Feedback says which
// counters came, and of each path the newest with its arrival time. From that come the round trip, without the time for which the
// receiver held the report; the delay of one way up to a constant that is the same for all paths, so that they can be compared, and what
// a packet waited in queues is known exactly; and the rate of delivery over a round trip, by the receiver's clock. While a queue
// never empties, what arrives is what the path carries, and that is known within 10 ms. A message that went by two paths at once is settled by the
// first copy; each path has credit for its own only when something has come by it that was sent as late, and for as many as the receiver counted by it.
// What a packet will wait is what the line still takes in of what was sent, each from when it was sent: a line that rested has no queue. What it took
// beyond that, and is no trend, is jitter: a packet is expected that much later, or those that all wait for it would wait for the luck of the fastest.
//
// A packet came when it came to the machine, and not when somebody had time to read it: so whoever waits for a processor does not take that for a
// queue, at either end. And a sender that comes late itself has its paths keep a queue as long as that, so that they do not run dry meanwhile (nap).
//
// # Choosing
//
// A packet gets its path, and its counter, when a path may send: pacing and window say so. Of those that may, the one by which it
// arrives first is taken, with the queue that it will find there; of paths alike, the one with less to do. But it waits if all of the backlog would
// arrive sooner by the others alone: so a slow or long path is used for what is long enough to gain by it, and never for a short transfer. What comes
// later holds up all that follows, and with that what the connection sends next. So by a path that adds a good part it goes ahead of its turn: what would come
// before it gets its counters, is sealed, and waits for the quicker path until it is its turn there (Assign, Due), and all arrives in its order. If its path fails
// or slows down it goes by any other. By a path that adds little nothing is sent ahead, or the connection's round trip would be that path's; so there has to be enough to
// do until then that is no mere burst, and none may hold up others for long (worth). What a path carries is found out by copies of what goes by others, while there
// always is something to send: nothing waits for those (Explore). The queue in front is the only one that
// grows; its CoDel target follows the round trip of those paths that carry a good part ([Sender.Target]), or one flow could not fill all paths.
//
// # Losing
//
// A packet is lost when later ones of its path have come, as far as that path is known to keep their order. It is sent again, the same bytes, by
// the path by which it comes soonest, at most twice. A path of which nothing comes, while feedback made later shows that it should have, is
// doubted: nothing new goes by it, and what is on its way goes again by others. After 80 ms of that it is silent. If what it carried
// comes after all, because the receiver was busy, it goes on as before, and has learned how late that may be. Where no feedback comes at
// all timers do the same. A path that is back, or new, carries a few packets that go by another path as well, and starts up again.
//
// # Congestion
//
// Each path has a [Control]: CUBIC, New Reno, or the default, which models the path as BBR does (draft-ietf-ccwg-bbr) but steers by the
// queue that is measured: a little of one is always left, so that the path is never idle and more need not be tried; without one
// more is tried; and with more, sending waits until it has drained. A queue that stays although what is sent here does not explain it
// is somebody else's: then the path's rate is that of CUBIC, from slow start on, which gets its share, and every few seconds it is looked whether
// they have gone. What goes by such a path is reckoned to wait for that queue too, and its least delay is not forgotten while it stands. Of losses,
// more than 2 % in a round trip count.
//
// # Trust
//
// Feedback is authentic, but may be absurd. What acknowledges more than was sent is ignored whole. Times count only where they are possible.
// No rate is believed above that of sending. All memory is bounded: copies, messages, flights, events.
//
// Files: sender.go (what the caller tells), sender_next.go (which path), sender_order.go (what is worth waiting for), sender_assign.go (what waits for its turn at a path), sender_feedback.go (what came), sender_log.go (what was sent),
// sender_path.go, estimate.go and crowd.go (a path, what is measured of it, and of others there), nap.go (how late the sender comes), remote.go (the receiver's clock), health.go (loss, silence, return), timers.go (when no word comes),
// control.go, bbr.go, cubic.go, hystart.go, reno.go; receiver*.go and feedback.go.
package bond

import (
	"fmt"
	"time"
)

// DefaultMemory is how many bytes of copies a Sender keeps at most: 600 Mbit/s for 110 ms.
const DefaultMemory = 8 << 20

// A Path is a way to the peer as whoever probes it knows it.
type Path struct {
	ID       PathID
	Metric   int           // one with a higher metric carries data only when none with a lower one is alive
	RTT      time.Duration // by probes; 0: unknown
	Overhead int           // bytes around each message outside: IP, UDP, a relay's prefix
}

// A State says what a path is used for.
type State uint8

// The states.
const (
	Active    State = iota // it carries data
	Standby                // it lives, and one with a lower metric carries the data
	Silent                 // what is sent by it does not arrive; it carries nothing
	Returning              // it is back: what it carries goes by another path as well
)

var stateNames = [...]string{"active", "standby", "silent", "returning"}

func (s State) String() string {
	if int(s) < len(stateNames) {
		return stateNames[s]
	}
	return fmt.Sprintf("state %d", s)
}

// A PathStatus is how a path does.
type PathStatus struct {
	ID          PathID
	State       State
	Reason      string // for State
	Metric      int
	RTT, MinRTT time.Duration // smoothed, and the least of the last ten seconds; 0: unknown
	Rate        float64       // bytes/s delivered, windowed maximum
	Loss        float64       // share of packets, smoothed
	InFlight    int           // bytes
	Window      int           // bytes that may be in flight

	SentPackets, SentBytes    uint64
	LostPackets, AgainPackets uint64  // lost by this path; sent again by this path
	Share                     float64 // of the bytes that all paths carried lately
}

// An Event is a change of a path's state.
type Event struct {
	At       time.Duration
	Path     PathID
	From, To State
	Reason   string // one sentence for people
}
