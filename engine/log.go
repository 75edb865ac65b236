package engine

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// repeatAfter is how long a message that may come with every packet stays unsaid after it was said.
const repeatAfter = time.Minute

// A limiter keeps messages that packets cause from filling the log. Keys are constants of the program, so the
// map is bounded.
type limiter struct {
	log  *slog.Logger
	mu   sync.Mutex
	said map[string]*saying
}

type saying struct {
	at     time.Time
	unsaid int
}

func newLimiter(log *slog.Logger) *limiter {
	return &limiter{log: log, said: make(map[string]*saying)}
}

// say logs the message unless one of the same key was said lately.
func (l *limiter) say(level slog.Level, key, msg string, args ...any) {
	if !l.log.Enabled(context.Background(), level) {
		return
	}
	now := time.Now()
	l.mu.Lock()
	s := l.said[key]
	if s == nil {
		s = &saying{}
		l.said[key] = s
	} else if now.Sub(s.at) < repeatAfter {
		s.unsaid++
		l.mu.Unlock()
		return
	}
	unsaid := s.unsaid
	*s = saying{at: now}
	l.mu.Unlock()
	if unsaid > 0 {
		args = append(args, "unsaid", unsaid)
	}
	l.log.Log(context.Background(), level, msg, args...)
}
