//! Why a limit cannot use the body of a request.

/// Why servers may interpret a body in different ways.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnreadableBody {
    /// The body is longer than limits read.
    TooLong,
    /// The limit does not read bodies with this content type, charset or content coding.
    Type,
    /// The body does not match its content type.
    Malformed,
    /// The body contains no JSON-RPC calls, or servers may read others in it.
    NotCalls,
    /// The batch has more calls than limits read.
    TooManyCalls,
    /// The headers of the Model Context Protocol name another call than the body.
    OtherCall,
    /// The request contains no GraphQL query, or servers may read another one in it.
    NotGraphql,
    /// The request names a query that only the server knows, and its cost is not configured.
    StoredQuery,
    /// The GraphQL query is deeper than allowed.
    TooDeep,
    /// The request creates a batch for an LLM, and no response to it reports what the batch costs.
    Batch,
}
