package fit

import "time"

const (
	// answersPerSecond and answersBurst bound ICMP errors as Linux does (net.ipv4.icmp_msgs_per_sec, icmp_msgs_burst): so many
	// that each sender is told soon, and few enough that who does not listen costs next to nothing.
	answersPerSecond = 1000
	answersBurst     = 50

	answerEvery = time.Second / answersPerSecond
)

// A Limit bounds how many packets are answered with ICMP errors (RFC 1812 section 4.3.2.8, RFC 4443 section 2.4 f), by a token
// bucket. The zero value is full. One goroutine at a time may use it.
type Limit struct {
	until time.Time // by when what was taken is there again
}

// Allow takes a token; false: there is none.
func (l *Limit) Allow(now time.Time) bool {
	if l.until.Before(now) {
		l.until = now
	}
	if l.until.Sub(now) > (answersBurst-1)*answerEvery {
		return false
	}
	l.until = l.until.Add(answerEvery)
	return true
}
