package engine

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"golang.zx2c4.com/wireguard/device"
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

// wireguard is the logger of the device: what it calls verbose is debug here, what it calls an error is a
// warning, and neither repeats.
func (l *limiter) wireguard() *device.Logger {
	return &device.Logger{
		Verbosef: func(format string, args ...any) {
			if l.log.Enabled(context.Background(), slog.LevelDebug) {
				l.log.Debug("wireguard: " + fmt.Sprintf(format, args...))
			}
		},
		Errorf: func(format string, args ...any) {
			l.say(slog.LevelWarn, format, "wireguard: "+fmt.Sprintf(format, args...))
		},
	}
}
