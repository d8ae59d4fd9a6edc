package session

// Counts of results. Its owner has the mutex.
type Counts map[Result]uint64

// All of them so far, also those that there were none of.
func (c Counts) All() Counts {
	all := make(Counts, len(Results))
	for _, result := range Results {
		all[result] = c[result]
	}
	return all
}

// Result is what became of a datagram.
type Result string

// Results, as metrics have them.
const (
	// Completed a state.
	ResultAccepted Result = "accepted"
	// One of several that make a state.
	ResultPart Result = "part"
	// Without the nonce of this session, as the first after either side's start: the
	// answer has it.
	ResultChallenged Result = "challenged"
	ResultDuplicate  Result = "duplicate"
	// Of a state that was taken already, or is older than one that was.
	ResultReplayed Result = "replayed"
	// Of a state older than one whose parts are being received.
	ResultOutdated Result = "outdated"
	// The state before was given up: parts of it are missing, and the next one came.
	ResultIncomplete    Result = "incomplete"
	ResultMalformed     Result = "malformed"
	ResultOtherKey      Result = "other_key"
	ResultUnknownSender Result = "unknown_sender"
	ResultForged        Result = "forged"
	ResultRateLimited   Result = "rate_limited"
)

// Results are all of them.
var Results = []Result{
	ResultAccepted, ResultPart, ResultChallenged, ResultDuplicate, ResultReplayed, ResultOutdated, ResultIncomplete,
	ResultMalformed, ResultOtherKey, ResultUnknownSender, ResultForged, ResultRateLimited,
}
