/*
 * json_answer.c
 *	  JSON that a peer sent, by the server's own parser (jsonb).
 *
 * A peer can send anything: what cannot be parsed, is nested too deep or is not
 * in UTF-8 is no answer, and no error. So errors of the parser, which touches no
 * data of the server, are caught right here; those that are about us, such as
 * being cancelled, go on.
 */
#include "taskoutbox.h"
#include "json_answer.h"

#include "mb/pg_wchar.h"
#include "utils/fmgrprotos.h"
#include "utils/memutils.h"

static Jsonb *
parse(const char *peers, size_t len, int encoding)
{
	MemoryContext context = CurrentMemoryContext;
	Jsonb	   *volatile result = NULL;

	if (strlen(peers) != len)
		return NULL;
	PG_TRY();
	{
		char	   *text = pg_any_to_server(peers, len, encoding);

		result = DatumGetJsonbP(DirectFunctionCall1(jsonb_in, CStringGetDatum(text)));
	}
	PG_CATCH();
	{
		ErrorData  *error;

		MemoryContextSwitchTo(context);
		error = CopyErrorData();
		FlushErrorState();
		if (ERRCODE_TO_CATEGORY(error->sqlerrcode) == ERRCODE_OPERATOR_INTERVENTION ||
			ERRCODE_TO_CATEGORY(error->sqlerrcode) == ERRCODE_INTERNAL_ERROR ||
			error->sqlerrcode == ERRCODE_OUT_OF_MEMORY)
			ReThrowError(error);
		FreeErrorData(error);
	}
	PG_END_TRY();
	return result;
}

Jsonb *
json_parse(const char *text)
{
	return parse(text, strlen(text), GetDatabaseEncoding());
}

JsonbContainer *
json_answer(const char *utf8, size_t len)
{
	Jsonb	   *jsonb = parse(utf8, len, PG_UTF8);

	return jsonb && JB_ROOT_IS_OBJECT(jsonb) ? &jsonb->root : NULL;
}

static JsonbValue *
member(JsonbContainer *object, const char *name, enum jbvType type)
{
	JsonbValue *value = object == NULL ? NULL :
		getKeyJsonValueFromContainer(object, name, strlen(name), NULL);

	return value && value->type == type ? value : NULL;
}

char *
json_text(JsonbContainer *object, const char *name)
{
	JsonbValue *value = member(object, name, jbvString);

	if (value)
		return pnstrdup(value->val.string.val, value->val.string.len);
	value = member(object, name, jbvNumeric);
	return value == NULL ? NULL :
		DatumGetCString(DirectFunctionCall1(numeric_out, NumericGetDatum(value->val.numeric)));
}

JsonbContainer *
json_member(JsonbContainer *object, const char *name)
{
	JsonbValue *value = member(object, name, jbvBinary);

	return value && JsonContainerIsObject(value->val.binary.data) ? value->val.binary.data : NULL;
}

JsonbContainer *
json_list(JsonbContainer *object, const char *name)
{
	JsonbValue *value = member(object, name, jbvBinary);

	return value && JsonContainerIsArray(value->val.binary.data) ? value->val.binary.data : NULL;
}

int
json_list_length(JsonbContainer *list)
{
	return list == NULL ? 0 : JsonContainerSize(list);
}

JsonbContainer *
json_list_item(JsonbContainer *list, int i)
{
	JsonbValue *value = getIthJsonbValueFromContainer(list, i);

	return value && value->type == jbvBinary && JsonContainerIsObject(value->val.binary.data) ?
		value->val.binary.data : NULL;
}
